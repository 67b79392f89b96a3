"""Records of containers, sandboxes and images, made short."""

from __future__ import annotations

from kubelet_trio.gc.images import ImageRecord
from kubelet_trio.model import (
    ContainerId,
    ContainerRecord,
    ContainerState,
    PodUid,
    RuntimePod,
    SandboxId,
    SandboxRecord,
)

DEAD = ContainerState.EXITED
RUNS = ContainerState.RUNNING


def container(
    name: str,
    attempt: int,
    state: ContainerState = DEAD,
    *,
    created: float | None = None,
    ended: float = 0.0,
    sandbox: str = "s",
) -> ContainerRecord:
    return ContainerRecord(
        id=ContainerId(f"{name}-{attempt}"),
        name=name,
        sandbox_id=SandboxId(sandbox),
        state=state,
        attempt=attempt,
        created_at=float(attempt) if created is None else created,
        finished_at=ended if state is DEAD else 0.0,
    )


def sandbox(name: str, created: float, *, ready: bool = False) -> SandboxRecord:
    return SandboxRecord(SandboxId(name), ready, 0, created, host_network=False)


def pod(
    uid: str, *containers: ContainerRecord, sandboxes: tuple[SandboxRecord, ...] = ()
) -> RuntimePod:
    newest_first = sorted(containers, key=lambda c: c.attempt, reverse=True)
    return RuntimePod(PodUid(uid), "ns", uid, sandboxes, tuple(newest_first))


def image(
    name: str,
    size: int = 100,
    *,
    seen: float = float("-inf"),
    used: float = float("-inf"),
    pinned: bool = False,
) -> ImageRecord:
    return ImageRecord(
        f"sha256:{name}", (f"docker.io/library/{name}:latest",), size, pinned, seen, used
    )
