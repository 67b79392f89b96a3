"""Small CRI configs with Kubernetes' labels, for tests that call a runtime directly."""

from __future__ import annotations

from kubelet_trio.containers import CONTAINER_NAME, POD_NAME, POD_NAMESPACE, POD_UID
from kubelet_trio.cri import v1
from kubelet_trio.model import ContainerId, SandboxId
from kubelet_trio.testing.runtime import FakeRuntime


def sandbox_config(
    pod: str = "web", *, uid: str = "", namespace: str = "default", attempt: int = 0
) -> v1.PodSandboxConfig:
    """Return a sandbox's config; the UID is `<pod>-uid` unless given."""
    uid = uid or f"{pod}-uid"
    return v1.PodSandboxConfig(
        metadata=v1.PodSandboxMetadata(name=pod, uid=uid, namespace=namespace, attempt=attempt),
        labels={POD_NAME: pod, POD_NAMESPACE: namespace, POD_UID: uid},
    )


def container_config(
    sandbox: v1.PodSandboxConfig, name: str = "main", image: str = "run", *, attempt: int = 0
) -> v1.ContainerConfig:
    """Return a container's config for a sandbox; the image defines its behaviour."""
    labels = {
        key: value
        for key, value in sandbox.labels.items()
        if key in (POD_NAME, POD_NAMESPACE, POD_UID)
    }
    return v1.ContainerConfig(
        metadata=v1.ContainerMetadata(name=name, attempt=attempt),
        image=v1.ImageSpec(image=image),
        labels={**labels, CONTAINER_NAME: name},
        log_path=f"{name}/{attempt}.log",
    )


async def run_pod(
    runtime: FakeRuntime, pod: str = "web", *, uid: str = "", images: tuple[str, ...] = ("run",)
) -> tuple[SandboxId, list[ContainerId]]:
    """Run a pod with one container per image, named `main`, `main1`, ..."""
    config = sandbox_config(pod, uid=uid)
    sandbox_id = await runtime.run_pod_sandbox(config)
    containers = []
    for number, image in enumerate(images):
        containers.append(
            await start_container(
                runtime, sandbox_id, config, f"main{number}" if number else "main", image
            )
        )
    return sandbox_id, containers


async def start_container(
    runtime: FakeRuntime,
    sandbox_id: SandboxId,
    sandbox: v1.PodSandboxConfig,
    name: str = "main",
    image: str = "run",
    *,
    attempt: int = 0,
) -> ContainerId:
    """Pull, create and start one container."""
    runtime.images.present.add(image)
    config = container_config(sandbox, name, image, attempt=attempt)
    container_id = await runtime.create_container(sandbox_id, config, sandbox)
    await runtime.start_container(container_id)
    return container_id
