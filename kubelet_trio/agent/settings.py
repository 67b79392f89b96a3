"""What the agent is told, and the seams through which it meets the world."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from kubelet_trio.agent.admission import AdmissionSettings
from kubelet_trio.agent.cgroups import CgroupPolicy, CgroupTree, PodCgroupRemover
from kubelet_trio.cgroups import CgroupDriver
from kubelet_trio.containers import NodeSettings
from kubelet_trio.credentials import Keyring, PullVerification
from kubelet_trio.cri import Runtime
from kubelet_trio.gc import ContainerPolicy, ImagePolicy, LogRotationPolicy
from kubelet_trio.model import (
    DiskSpace,
    Meter,
    Offload,
    Purpose,
    SystemClock,
    WallClock,
    disk_space,
    offload_for,
    thread_offload,
)
from kubelet_trio.pleg import ExitWaiter
from kubelet_trio.pods import BackOffPolicy
from kubelet_trio.pressure import EvictionPolicy, MemoryEvents, Signals
from kubelet_trio.probes import ExecOrphans
from kubelet_trio.shutdown import Logind, ShutdownPeriod
from kubelet_trio.sources import Source
from kubelet_trio.supervision import ChildSpec
from kubelet_trio.volumes import Mounter

if TYPE_CHECKING:
    from kubelet_trio.agent.cluster import Cluster
    from kubelet_trio.agent.core import Agent
    from kubelet_trio.agent.node_api import NodeApiSettings
    from kubelet_trio.stats import Host


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """What the agent was told, in plain values."""

    node: NodeSettings
    runtime_endpoint: str = ""
    request_timeout: float = 120.0  # seconds that a call of the runtime may take
    sync_period: float = 60.0  # seconds between a worker's rounds if nothing wakes it
    parallel_pulls: int | None = 1  # None: as many as there are
    pull_qps: float = 0  # image pulls that may begin a second; 0: no limit
    pull_burst: int = 1  # and at once
    crash_back_off: BackOffPolicy = field(default_factory=BackOffPolicy)
    cgroups: CgroupPolicy = field(default_factory=CgroupPolicy)
    ids_per_pod: int = 65536  # of a pod with users of its own
    notes: tuple[str, ...] = ()  # remarks on the configuration, shown by `status`
    log_rotation: LogRotationPolicy = field(default_factory=LogRotationPolicy)
    container_gc: ContainerPolicy = field(default_factory=ContainerPolicy)
    # Off unless asked for: the images of a runtime may be somebody else's.
    image_gc: ImagePolicy = field(default_factory=lambda: ImagePolicy(high_threshold=100))
    pull_verification: PullVerification | None = None  # None: no record of pulls is kept
    eviction: EvictionPolicy = field(default_factory=EvictionPolicy)
    shutdown: tuple[ShutdownPeriod, ...] = ()  # none: the node's shutdown is not waited for
    pod_cidr: str = ""  # of pods' addresses, until the node's object has one
    sandbox_image: str = ""  # where the runtime neither names nor pins it
    # Of stats: `runtime` and `misc`, with their cgroups.
    system_cgroups: tuple[tuple[str, str], ...] = ()
    volume_stats_period: float = 60.0  # seconds that a volume's measured size holds; <= 0: never
    admission: AdmissionSettings = field(default_factory=AdmissionSettings)
    instance: str = ""  # of an embedded agent: it owns only what bears this; "": the daemon


@dataclass(frozen=True, slots=True)
class Seams:
    """The world: each of these has a fake in `testing`."""

    runtime: Runtime
    mounter: Mounter
    cgroups: Callable[[CgroupDriver], PodCgroupRemover]  # by driver
    sources: tuple[Source, ...]
    exit_waiter: ExitWaiter | None
    connection: ChildSpec | None = None  # what keeps the runtime connected
    servers: Callable[[Agent], tuple[ChildSpec, ...]] = lambda _agent: ()
    machine: tuple[ChildSpec, ...] = ()  # what keeps the machine itself as it is wanted
    cluster: Cluster | None = None  # an API server; its source is among `sources`
    node_api: NodeApiSettings | None = None  # None: there is no kubelet API
    exec_orphans: ExecOrphans | None = None  # None: containers' processes are not ours to see
    clock: WallClock = field(default_factory=SystemClock)
    offload: Offload = thread_offload
    keyring: Keyring | None = None  # None: the pods' own secrets are all there is
    cgroup_tree: Callable[[CgroupDriver], CgroupTree] | None = None  # None: it is the runtime's
    memory_allocatable: int = 0
    disk_space: Callable[[str], DiskSpace] = disk_space
    kernel_log: Path | None = None  # of what the kernel kills; None: it is not read
    memory_events: Callable[[], MemoryEvents] | None = None  # of containers; None: not watched
    logind: Logind | None = None  # None: this machine's
    signals: Signals | None = None  # None: this machine's
    tmpfs_noswap: bool = False
    meter: Meter = field(default_factory=Meter)  # what was counted before there was an agent
    stats_host: Host | None = None  # where the kernel's files are; None: found out

    def offload_for(self, purpose: Purpose) -> Offload:
        """Return what runs blocking work of one purpose, apart from that of others."""
        return offload_for(self.offload, purpose)
