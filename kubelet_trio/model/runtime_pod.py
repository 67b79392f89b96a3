"""What the runtime says exists of a pod: immutable snapshots, newest first.

Made by `pleg` from CRI messages, read by the pure decisions (`plan_pod`, `pod_status`).
Times are Unix seconds as floats, 0.0 where CRI says 0 (not yet).
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from kubelet_trio.model.ids import ContainerId, PodUid, SandboxId


class ContainerState(enum.Enum):
    """CRI's container states, under Kubernetes' names."""

    CREATED = "created"
    RUNNING = "running"
    EXITED = "exited"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ContainerRecord:
    """One container instance in the runtime (a restart makes a new one)."""

    id: ContainerId
    name: str
    sandbox_id: SandboxId
    state: ContainerState
    attempt: int  # the restart count it was created with
    created_at: float
    started_at: float = 0.0
    finished_at: float = 0.0
    exit_code: int = 0
    reason: str = ""  # the runtime's: Completed, Error, OOMKilled, ...
    message: str = ""  # the runtime's, without the termination message
    image: str = ""  # as the pod named it
    image_id: str = ""  # what API status shows as imageID
    hash: str = ""  # annotation io.kubernetes.container.hash, lower-case hex
    log_path: str = ""  # absolute path on the host
    termination_message_path: str = ""  # path on the host of the mounted message file; "" if none
    annotations: Mapping[str, str] = field(default_factory=dict)
    user: tuple[int, int, tuple[int, ...]] | None = None  # uid, gid, supplemental groups
    pid: int = 0  # 0 where the runtime does not tell


@dataclass(frozen=True, slots=True)
class SandboxRecord:
    """One sandbox of a pod; more than one only while an old one is being replaced."""

    id: SandboxId
    ready: bool
    attempt: int
    created_at: float
    host_network: bool
    ips: tuple[str, ...] = ()  # primary first; empty on the host's network
    source: str = ""  # which of the agent's sources wanted the pod; "" where that is not told
    handler: str = ""  # of its runtime class; "": the runtime's default


@dataclass(frozen=True, slots=True)
class RuntimePod:
    """All that the runtime holds of one pod UID; both tuples are newest first."""

    uid: PodUid
    namespace: str = ""
    name: str = ""
    sandboxes: tuple[SandboxRecord, ...] = ()
    containers: tuple[ContainerRecord, ...] = ()
    observed_at: float = 0.0  # trio time at which the question was asked

    @property
    def handler(self) -> str:
        """The runtime handler of the newest sandbox: what its containers can do depends on it."""
        return self.sandboxes[0].handler if self.sandboxes else ""

    def of(self, name: str) -> tuple[ContainerRecord, ...]:
        """Return the instances of one container, newest first."""
        return tuple(c for c in self.containers if c.name == name)

    def latest(self, name: str) -> ContainerRecord | None:
        """Return the newest instance of one container."""
        return next((c for c in self.containers if c.name == name), None)

    def running(self) -> Iterator[ContainerRecord]:
        """Yield instances that run or may run: what must be gone before the sandbox."""
        return (
            c
            for c in self.containers
            if c.state in (ContainerState.RUNNING, ContainerState.UNKNOWN)
        )

    @property
    def exists(self) -> bool:
        """Whether the runtime holds anything at all of this pod."""
        return bool(self.sandboxes or self.containers)
