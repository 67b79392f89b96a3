"""What the outside may see of the agent: the one seam between the tree and its servers.

The agent implements `AgentView`; health, the control socket and later the kubelet API
read through it and change nothing. Everything it returns is a snapshot or a value to be
watched, so a request can be served at any time, also while the tree is starting or ending.
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
    """The container runtime as last seen. `problem` is empty while it is well."""

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
    """A manifest that is not followed, or a source that cannot be read."""

    where: str  # file with document and field path, or URL
    message: str


@dataclass(frozen=True, slots=True)
class PortInfo:
    """An address that the agent serves on. `problem` is empty while it is open."""

    name: str  # as in the tree, e.g. `healthz`
    field: str  # what configures it, e.g. `healthzPort`
    address: str
    problem: str = ""


@dataclass(frozen=True, slots=True)
class AgentStatus:
    """The agent in one page. Times are Unix seconds."""

    node_name: str
    root_dir: str
    started_at: float
    runtime: RuntimeInfo
    sources: tuple[SourceInfo, ...] = ()
    checks: Mapping[str, str | None] = field(default_factory=dict)  # None: well
    notes: tuple[str, ...] = ()  # remarks on the configuration
    events_dropped: int = 0
    remains: Mapping[str, str] = field(default_factory=dict)  # dead pods not removed, and why
    ports: tuple[PortInfo, ...] = ()


class AgentView(Protocol):
    """What servers may ask of the running agent."""

    @property
    def pods(self) -> AsyncValue[Mapping[PodUid, Pod]]:
        """Pods with their last status. The mapping is replaced, never changed."""
        ...

    @property
    def events(self) -> EventRing: ...

    def status(self) -> AgentStatus: ...

    def tree(self) -> TreeNode: ...

    def log_path(self, uid: PodUid, container_id: ContainerId) -> Path | None:
        """Return where an instance writes its log; None if the runtime does not know it."""
        ...

    def is_running(self, uid: PodUid, container_id: ContainerId) -> bool:
        """Whether an instance may still write to its log."""
        ...


class NodeView(AgentView, Protocol):
    """What the kubelet API may ask beyond that: it also does things to containers."""

    @property
    def runtime(self) -> Runtime: ...

    def observed(self, uid: PodUid) -> RuntimePod:
        """Return what the runtime holds of a pod, as last seen."""
        ...

    def running_pods(self) -> Iterable[RuntimePod]:
        """Return the pods of which something runs, wanted or not."""
        ...
