"""The actual state of a pod at the runtime: immutable snapshots, newest first.

`pleg` creates them from CRI messages; pure functions (`plan_pod`, `pod_status`) read them. Times
are Unix seconds as floats, 0.0 for "not yet", as in CRI.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from kubelet_trio.model.ids import ContainerId, PodUid, SandboxId


class ContainerState(enum.Enum):
    """The container states of CRI."""

    CREATED = "created"
    RUNNING = "running"
    EXITED = "exited"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ConfiguredResources:
    """CPU and memory of a container as the runtime has last set them.

    0: not set; -1 for quota and limit: removed. It is what was asked for, not what the cgroup has:
    other programs may have written there, and `cpu.weight` of version 2 has fewer values than
    shares.
    """

    cpu_shares: int = 0  # 1024 a core
    cpu_quota: int = 0  # microseconds of CPU time in a period
    cpu_period: int = 0  # microseconds
    memory_limit: int = 0  # bytes


@dataclass(frozen=True, slots=True)
class ImageMount:
    """An image that a container mounts as a volume."""

    path: str  # in the container
    image: str  # as the runtime was told to mount it
    ref: str = ""  # its digest; "" if the runtime does not report it


@dataclass(frozen=True, slots=True)
class ContainerRecord:
    """One container instance in the runtime (a restart creates a new one)."""

    id: ContainerId
    name: str
    sandbox_id: SandboxId
    state: ContainerState
    attempt: int  # the restart count at its creation
    created_at: float
    started_at: float = 0.0
    finished_at: float = 0.0
    exit_code: int = 0
    reason: str = ""  # from the runtime: Completed, Error, OOMKilled, ...
    message: str = ""  # from the runtime, without the termination message
    image: str = ""  # as in the pod's spec
    image_id: str = ""  # imageID in the API's status
    hash: str = ""  # annotation io.kubernetes.container.hash, lower-case hex
    log_path: str = ""  # absolute path on the host
    termination_message_path: str = ""  # path on the host of the mounted message file; "" if none
    annotations: Mapping[str, str] = field(default_factory=dict)
    user: tuple[int, int, tuple[int, ...]] | None = None  # uid, gid, supplemental groups
    pid: int = 0  # 0 if the runtime does not report it
    resources: ConfiguredResources | None = None  # None if the runtime does not report them
    stop_signal: str = ""  # the API's name of it: SIGRTMIN+3; "" if the runtime does not report it
    image_mounts: tuple[ImageMount, ...] = ()


@dataclass(frozen=True, slots=True)
class SandboxRecord:
    """One sandbox of a pod; there are several only while an old one is being replaced."""

    id: SandboxId
    ready: bool
    attempt: int
    created_at: float
    host_network: bool
    ips: tuple[str, ...] = ()  # primary first; empty on the host's network
    source: str = ""  # the pod's source (file, http, api); "" if unknown
    handler: str = ""  # of its runtime class; "": the runtime's default


@dataclass(frozen=True, slots=True)
class RuntimePod:
    """All sandboxes and containers of one pod UID; both tuples are newest first."""

    uid: PodUid
    namespace: str = ""
    name: str = ""
    sandboxes: tuple[SandboxRecord, ...] = ()
    containers: tuple[ContainerRecord, ...] = ()
    observed_at: float = 0.0  # trio time of the request to the runtime

    @property
    def handler(self) -> str:
        """The runtime handler of the newest sandbox; features of its containers depend on it."""
        return self.sandboxes[0].handler if self.sandboxes else ""

    def of(self, name: str) -> tuple[ContainerRecord, ...]:
        """Return the instances of one container, newest first."""
        return tuple(c for c in self.containers if c.name == name)

    def latest(self, name: str) -> ContainerRecord | None:
        """Return the newest instance of one container."""
        return next((c for c in self.containers if c.name == name), None)

    def running(self) -> Iterator[ContainerRecord]:
        """Yield instances that run or may run; they must end before the sandbox is stopped."""
        return (
            c
            for c in self.containers
            if c.state in (ContainerState.RUNNING, ContainerState.UNKNOWN)
        )

    @property
    def exists(self) -> bool:
        """Whether the runtime has any sandbox or container of this pod."""
        return bool(self.sandboxes or self.containers)
