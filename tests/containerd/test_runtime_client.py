"""RemoteRuntime itself on a real containerd, which answers in ways no fake of ours would."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from kubelet_trio.cri import (
    ImagePullError,
    RemoteRuntime,
    RuntimeObjectNotFoundError,
    RuntimeTimeoutError,
    UnsupportedCallError,
    v1,
)
from kubelet_trio.cri.remote.runtime import EncodedListing
from kubelet_trio.model import ContainerId, PodUid, SandboxId
from tests.harness import Containerd
from tests.harness.images import BUSYBOX

ON_HOST = v1.NamespaceOption(network=v1.NamespaceMode.NODE)
LABELS = {f"label-{n}": "x" for n in range(6)}
ANNOTATIONS = {f"annotation-{n}": "y" for n in range(6)}


def sandbox_config(uid: str) -> v1.PodSandboxConfig:
    security = v1.LinuxSandboxSecurityContext(namespace_options=ON_HOST)
    return v1.PodSandboxConfig(
        metadata=v1.PodSandboxMetadata(name="client", namespace="test", uid=uid),
        labels=LABELS | {"io.kubernetes.pod.uid": uid},
        annotations=ANNOTATIONS,
        linux=v1.LinuxPodSandboxConfig(security_context=security),
    )


def container_config(uid: str) -> v1.ContainerConfig:
    security = v1.LinuxContainerSecurityContext(namespace_options=ON_HOST)
    return v1.ContainerConfig(
        metadata=v1.ContainerMetadata(name="main"),
        image=v1.ImageSpec(image=BUSYBOX),
        command=["sleep", "1000"],
        labels=LABELS | {"io.kubernetes.pod.uid": uid},
        annotations=ANNOTATIONS,
        linux=v1.LinuxContainerConfig(security_context=security),
    )


@asynccontextmanager
async def client(containerd: Containerd) -> AsyncIterator[RemoteRuntime]:
    runtime = RemoteRuntime(containerd.endpoint)
    async with trio.open_nursery() as nursery:
        await nursery.start(runtime.run)
        yield runtime
        nursery.cancel_scope.cancel()


async def run_pod(runtime: RemoteRuntime, uid: str) -> tuple[SandboxId, ContainerId]:
    config = sandbox_config(uid)
    sandbox = await runtime.run_pod_sandbox(config)
    container = await runtime.create_container(sandbox, container_config(uid), config)
    await runtime.start_container(container)
    return sandbox, container


async def test_what_containerd_says_of_itself(containerd: Containerd) -> None:
    async with client(containerd) as runtime:
        assert (await runtime.version()).runtime_name == "containerd"
        status = (await runtime.status()).status
        assert status is not None
        conditions = {c.type: c.status for c in status.conditions}
        assert conditions["RuntimeReady"]
        config = await runtime.runtime_config()
        assert config is None or (config.linux and config.linux.cgroup_driver in v1.CgroupDriver)
        image = await runtime.image_status(v1.ImageSpec(image=BUSYBOX))
        assert image is not None
        assert BUSYBOX in image.repo_tags
        assert await runtime.image_status(v1.ImageSpec(image="localhost/none:1")) is None
        assert runtime.connected.value


async def test_a_pod_from_beginning_to_end_and_beyond(containerd: Containerd) -> None:
    async with client(containerd) as runtime:
        sandbox, container = await run_pod(runtime, "client-life")
        status, pid = await runtime.container_status(container, verbose=True)
        assert status.state is v1.ContainerState.CONTAINER_RUNNING
        assert pid > 1
        result = await runtime.exec_sync(
            container, ["sh", "-c", "echo out; echo err >&2; exit 3"], 10
        )
        assert (result.stdout, result.stderr, result.exit_code) == (b"out\n", b"err\n", 3)
        with pytest.raises(RuntimeTimeoutError):
            await runtime.exec_sync(container, ["sleep", "30"], 1)

        for _ in range(2):  # the second time all of it is gone
            await runtime.stop_container(container, 0)
            await runtime.remove_container(container)
            await runtime.stop_pod_sandbox(sandbox)
            await runtime.remove_pod_sandbox(sandbox)
        with pytest.raises(RuntimeObjectNotFoundError):
            await runtime.container_status(container)
        with pytest.raises(RuntimeObjectNotFoundError):
            await runtime.pod_sandbox_status(sandbox)


async def test_lists_that_did_not_change_cost_no_decoding(containerd: Containerd) -> None:
    """Go writes maps in another order each time, so equal answers hardly ever have equal bytes."""
    async with client(containerd) as runtime:
        pods = [await run_pod(runtime, f"client-list-{n}") for n in range(3)]
        containers = await runtime.list_containers()
        sandboxes = await runtime.list_pod_sandboxes()
        for _ in range(10):
            again = await runtime.list_containers(containers)
            assert all(again.entries[key] is containers.entries[key] for _, key in pods)
            assert isinstance(again, EncodedListing)
            assert isinstance(containers, EncodedListing)
            assert again.by_encoding.keys() == containers.by_encoding.keys()
            more = await runtime.list_pod_sandboxes(sandboxes)
            assert all(more.entries[key] is sandboxes.entries[key] for key, _ in pods)
        _, stopped = pods[0]
        await runtime.stop_container(stopped, 0)
        after = await runtime.list_containers(containers)
        assert after.entries[stopped].state is v1.ContainerState.CONTAINER_EXITED
        assert all(after.entries[key] is containers.entries[key] for _, key in pods[1:])
        of_one = await runtime.list_containers(uid=PodUid("client-list-1"))
        assert list(of_one.entries) == [pods[1][1]]
        for sandbox, _ in pods:
            await runtime.stop_pod_sandbox(sandbox)
            await runtime.remove_pod_sandbox(sandbox)


async def test_a_pull_that_fails_says_so(containerd: Containerd) -> None:
    async with client(containerd) as runtime:
        with pytest.raises(ImagePullError) as caught:
            await runtime.pull_image(
                v1.ImageSpec(image="127.0.0.1:1/x/y:1"), None, sandbox_config("client-pull")
            )
    assert caught.value.reason == "ErrImagePull"
    assert "127.0.0.1:1/x/y:1" in caught.value.message


async def test_events_stream_or_are_unsupported(containerd: Containerd) -> None:
    uid = PodUid("client-events")
    async with client(containerd) as runtime:
        sandbox, container = await run_pod(runtime, uid)
        try:
            async with runtime.container_events() as events:
                await runtime.stop_pod_sandbox(sandbox)
                with trio.fail_after(60):
                    assert (await anext(events)).container_id in (sandbox, container)
        except UnsupportedCallError:
            assert (await runtime.version()).runtime_version.startswith("1.")
        await runtime.stop_pod_sandbox(sandbox)
        await runtime.remove_pod_sandbox(sandbox)
        assert not (await runtime.list_pod_sandboxes(uid=uid)).entries
