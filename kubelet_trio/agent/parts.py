"""The parts of an agent, step by step as `agent.compose` builds them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trio_util import AsyncValue

from kubelet_trio.agent.changes import PodChanges
from kubelet_trio.agent.desired import DesiredPods
from kubelet_trio.agent.history import AgentHistory
from kubelet_trio.agent.settings import AgentSettings, Seams
from kubelet_trio.agent.stats import AgentStats
from kubelet_trio.agent.volumes import VolumeNames
from kubelet_trio.containers import NodeSettings
from kubelet_trio.credentials import ImageAccess
from kubelet_trio.cri import CallsInFlight, Runtime, RuntimeHealth
from kubelet_trio.events import EventRecorder
from kubelet_trio.gc import ContainerCollector, ImageCollector
from kubelet_trio.model import PodUid
from kubelet_trio.node import PodCidr, Pressure
from kubelet_trio.objects import LocalObjects, ObjectStore
from kubelet_trio.pleg import Pleg
from kubelet_trio.plugins import PluginRegistry
from kubelet_trio.pods import NodeCgroups, PlainCgroups, PodRegistry, PodServices, PodWorker
from kubelet_trio.pressure import EvictionManager
from kubelet_trio.shutdown import NOT_READY, NodeShutdown
from kubelet_trio.status import PodStarts, StatusStore
from kubelet_trio.supervision import ChildSpec, DynamicSupervisor, Supervisor
from kubelet_trio.volumes import CsiServices

if TYPE_CHECKING:
    from kubelet_trio.agent.claims import NodeClaims
    from kubelet_trio.agent.cluster import Cluster
    from kubelet_trio.agent.recording import Taps
    from kubelet_trio.managers import DeviceManagers, ResourceManagers
    from kubelet_trio.server import PodWatches


@dataclass(frozen=True, slots=True)
class Links:
    """The values that parts which need each other share, constructed before both.

    Attributes:
        changes: from PLEG, runtime health and objects to the registry.
        workers: the pod workers: the registry writes, the cluster's rooms read.
        pressure: the node's shortages: eviction writes, admission and the node's status read.
        is_shutting_down: node shutdown writes, admission and the node's status read.
    """

    changes: PodChanges = field(default_factory=PodChanges)
    workers: dict[PodUid, PodWorker] = field(default_factory=dict)
    pressure: AsyncValue[Pressure] = field(default_factory=lambda: AsyncValue(Pressure()))
    is_shutting_down: AsyncValue[bool] = field(default_factory=lambda: AsyncValue(False))

    def not_ready(self) -> str | None:
        """Return why the node admits no pods; None if it does."""
        return NOT_READY if self.is_shutting_down.value else None


@dataclass(frozen=True, slots=True)
class Setup:
    """The inputs of every step of the composition."""

    settings: AgentSettings
    seams: Seams
    links: Links
    cluster: Cluster | None  # None: a standalone node
    taps: Taps | None = None  # of the flight recorder; None: nothing is recorded


@dataclass(frozen=True, slots=True)
class Reports:
    """The receivers of the rooms' reports: events, statuses, pod start times, watches of pods."""

    events: EventRecorder
    statuses: StatusStore
    starts: PodStarts
    watches: PodWatches | None  # None: there is no Pods API


@dataclass(frozen=True, slots=True)
class RuntimeParts:
    """The container runtime, as the agent uses and observes it.

    Attributes:
        calls: the calls that change something.
        runtime: makes them; calls of `Seams.runtime` are neither guarded nor measured.
        health: whether the runtime is ready.
        pleg: the sandboxes and containers in it.
        pod_cidr: passes the range of pods' addresses to it.
        node: returns the node, with the cgroup driver that the runtime names.
    """

    calls: CallsInFlight
    runtime: Runtime
    health: RuntimeHealth
    pleg: Pleg
    pod_cidr: PodCidr
    node: Callable[[], NodeSettings]


@dataclass(frozen=True, slots=True)
class Supplies:
    """What the pod workers share: objects, images, cgroups and other services."""

    documents: LocalObjects
    objects: ObjectStore
    access: ImageAccess | None
    cgroups: NodeCgroups | PlainCgroups
    services: PodServices
    csi: CsiServices  # loaded when a driver registers, or with the first such volume
    managers: ResourceManagers | None  # None: all policies are `none`, and no device plugins
    claims: NodeClaims | None  # None: without dynamic resource allocation

    @property
    def devices(self) -> DeviceManagers | None:
        """The managers, if the node has device plugins."""
        if self.managers is None:
            return None
        from kubelet_trio.managers import DeviceManagers

        return self.managers if isinstance(self.managers, DeviceManagers) else None


@dataclass(frozen=True, slots=True)
class PodParts:
    """The pods: which are desired, and their workers."""

    supervisor: DynamicSupervisor
    registry: PodRegistry
    desired: DesiredPods
    sources: Supervisor


@dataclass(frozen=True, slots=True)
class Upkeep:
    """The parts that protect the node: garbage collection, eviction, node shutdown."""

    containers: ContainerCollector
    images: ImageCollector
    eviction: EvictionManager
    shutdown: NodeShutdown | None
    pressure_children: tuple[ChildSpec, ...]
    gc_children: tuple[ChildSpec | DynamicSupervisor, ...]


@dataclass(frozen=True, slots=True)
class Parts:
    """A whole agent, not running yet."""

    setup: Setup
    started_at: float  # Unix seconds
    reports: Reports
    runtime: RuntimeParts
    supplies: Supplies
    plugins: PluginRegistry | None  # None: the agent has no plugins
    pods: PodParts
    upkeep: Upkeep
    stats: AgentStats
    history: AgentHistory
    volume_names: VolumeNames

    @property
    def workers(self) -> Mapping[PodUid, PodWorker]:
        return self.pods.registry.workers
