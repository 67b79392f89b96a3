"""What the servers see of the agent: the one seam between the supervision tree and the servers.

The agent implements `AgentView` and `KubeletApiView`. Everything they return is a snapshot or a
watchable value, so a request can be served at any time, also while the tree starts or stops.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from lightkube.models.core_v1 import Pod
from trio_util import AsyncValue

from kubelet_trio.cri import Runtime
from kubelet_trio.events import EventRing
from kubelet_trio.model import ContainerId, PodUid, RuntimePod
from kubelet_trio.supervision import TreeNode


@dataclass(frozen=True, slots=True)
class RuntimeInfo:
    """The container runtime as last seen. `problem` is empty while there is none."""

    endpoint: str
    name: str = ""
    version: str = ""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class SourceInfo:
    """One source of pods: `name` as in the tree, e.g. `file:/etc/kubernetes/manifests`."""

    name: str
    delivered: bool
    pods: int = 0
    problems: tuple[ProblemInfo, ...] = ()


@dataclass(frozen=True, slots=True)
class ProblemInfo:
    """A manifest that is not in force, or a source that cannot be read."""

    where: str  # file with line, column and field path, or URL
    message: str
    pods: tuple[str, ...] = ()  # namespace/name of those that run on as the file had them before


@dataclass(frozen=True, slots=True)
class PortInfo:
    """An address that the agent serves on. `problem` is empty while it is open."""

    name: str  # as in the tree, e.g. `healthz`
    field: str  # of the configuration, e.g. `healthzPort`
    address: str
    problem: str = ""


@dataclass(frozen=True, slots=True)
class PullInfo:
    """The pull of an image under way. CRI has no progress in bytes."""

    uid: PodUid
    container: str
    image: str
    since: float  # Unix seconds
    is_queued: bool  # it waits for other pulls


def pull_text(pull: PullInfo, now: float) -> str:
    """Return the pull as a person is told it; `now` is in Unix seconds."""
    what = "Waiting for other pulls to pull" if pull.is_queued else "Pulling"
    return f'{what} image "{pull.image}" for {max(0.0, now - pull.since):.0f} s'


@dataclass(frozen=True, slots=True)
class AgentStatus:
    """The state of the agent in short. Times are Unix seconds."""

    node_name: str
    root_dir: str
    started_at: float
    runtime: RuntimeInfo
    sources: tuple[SourceInfo, ...] = ()
    checks: Mapping[str, str | None] = field(default_factory=dict)  # None: passed
    notes: tuple[str, ...] = ()  # remarks on the configuration
    events_dropped: int = 0
    remains: Mapping[str, str] = field(default_factory=dict)  # ended pods not removed yet, and why
    ports: tuple[PortInfo, ...] = ()
    pulls: tuple[PullInfo, ...] = ()  # under way


class AgentView(Protocol):
    """What servers may read of the running agent."""

    @property
    def pods(self) -> AsyncValue[Mapping[PodUid, Pod]]:
        """Pods with their last status. The mapping is replaced, never changed in place."""
        ...

    @property
    def events(self) -> EventRing: ...

    def status(self) -> AgentStatus: ...

    def tree(self) -> TreeNode: ...

    def log_path(self, uid: PodUid, container_id: ContainerId) -> Path | None:
        """Return the log file of a container; None if the runtime does not know the container."""
        ...

    def is_running(self, uid: PodUid, container_id: ContainerId) -> bool:
        """Return whether a container may still write to its log."""
        ...


class KubeletApiView(AgentView, Protocol):
    """What the kubelet API needs in addition, to act on containers."""

    @property
    def runtime(self) -> Runtime: ...

    def observed(self, uid: PodUid) -> RuntimePod:
        """Return the sandboxes and containers of a pod, as the runtime last reported them."""
        ...

    def running_pods(self) -> Iterable[RuntimePod]:
        """Return the pods that have anything running, desired or not."""
        ...


@dataclass(frozen=True, slots=True)
class ApiOptions:
    """Which routes the kubelet API has, under the configuration's names."""

    enable_debugging_handlers: bool = True
    enable_profiling_handler: bool = True
    enable_debug_flags_handler: bool = True
    enable_system_log_handler: bool = True
    enable_system_log_query: bool = False
    checkpoints: bool = True  # the gate ContainerCheckpoint
    split_log_streams: bool = False  # the gate PodLogsQuerySplitStreams
    streaming_idle_timeout: float = 4 * 3600.0
