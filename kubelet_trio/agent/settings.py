"""The agent's settings, and its seams to the outside."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from kubelet_trio.agent.admission import AdmissionSettings
from kubelet_trio.cgroups import CgroupDriver
from kubelet_trio.containers import NodeSettings
from kubelet_trio.credentials import Accounts, Keyring, PullVerification
from kubelet_trio.cri import Runtime
from kubelet_trio.gc import ContainerPolicy, ImagePolicy, LogRotationPolicy
from kubelet_trio.managers import ManagerSettings
from kubelet_trio.model import (
    DiskSpace,
    Meter,
    Offload,
    Purpose,
    SystemClock,
    WallClock,
    Watcher,
    disk_space,
    offload_for,
    thread_offload,
)
from kubelet_trio.node import NodeIdentity, NodeResources
from kubelet_trio.pleg import ExitWaiter
from kubelet_trio.pods import BackOffPolicy, CgroupOperations, CgroupPolicy, PodCgroupRemover
from kubelet_trio.pressure import EvictionInputs, EvictionPolicy, MemoryEvents, Signals
from kubelet_trio.probes import ExecOrphans
from kubelet_trio.server import ApiOptions
from kubelet_trio.shutdown import ShutdownPeriod
from kubelet_trio.sources import Source
from kubelet_trio.supervision import ChildSpec, RestartPolicy
from kubelet_trio.volumes import Mounter

if TYPE_CHECKING:
    from lightkube.models.core_v1 import NodeSystemInfo

    from kubelet_trio.agent.claims import ClaimInputs
    from kubelet_trio.agent.cluster import ApiServer
    from kubelet_trio.managers import OpenDevicePlugin
    from kubelet_trio.probes import ContainerScript
    from kubelet_trio.shutdown import Logind
    from kubelet_trio.sources import Takeover
    from kubelet_trio.stats import Host
    from kubelet_trio.tracing import Tracing
    from kubelet_trio.volumes import BlockDevices


# Of the supervisors right below the root. Low: budgets multiply on the way up the tree.
TOP_POLICY = RestartPolicy(limit=3)


@dataclass(frozen=True, slots=True)
class NodeSocketSettings:
    """Which gRPC APIs programs on the node find below the root directory."""

    pod_resources: bool = False  # pod-resources/kubelet.sock
    use_active_pods: bool = True  # the gate KubeletPodResourcesListUseActivePods
    pods_api: bool = False  # pods-api/pods-api.sock, of the gate PodsAPI


@dataclass(frozen=True, slots=True)
class OwnNode:
    """What the object of a node is made of, besides what is observed."""

    identity: NodeIdentity
    resources: NodeResources
    info: Callable[[str], NodeSystemInfo]  # describes the machine, given the runtime's version
    host_ips: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """The settings of one agent, in plain values."""

    node: NodeSettings
    runtime_endpoint: str = ""
    request_timeout: float = 120.0  # seconds that a call of the runtime may take
    sync_period: float = 60.0  # seconds between a worker's rounds if nothing wakes it
    parallel_pulls: int | None = 1  # None: no limit
    pull_qps: float = 0  # image pulls that may begin in a second; 0: no limit
    pull_burst: int = 1  # image pulls that may begin at one time
    crash_back_off: BackOffPolicy = field(default_factory=BackOffPolicy)
    cgroups: CgroupPolicy = field(default_factory=CgroupPolicy)
    ids_per_pod: int = 65536  # of a pod with a user namespace of its own
    notes: tuple[str, ...] = ()  # remarks on the configuration, shown by `status`
    log_rotation: LogRotationPolicy = field(default_factory=LogRotationPolicy)
    container_gc: ContainerPolicy = field(default_factory=ContainerPolicy)
    # Off by default: other programs may use the images of the same runtime.
    image_gc: ImagePolicy = field(default_factory=lambda: ImagePolicy(high_threshold=100))
    pull_verification: PullVerification | None = None  # None: no record of pulls is kept
    eviction: EvictionPolicy = field(default_factory=EvictionPolicy)
    shutdown: tuple[ShutdownPeriod, ...] = ()  # none: the node's shutdown is not guarded
    pod_cidr: str = ""  # range of pods' addresses, until the node's object has one
    sandbox_image: str = ""  # for a runtime that neither names nor pins it
    # System containers of the stats summary (`runtime` and `misc`), with their cgroups.
    system_cgroups: tuple[tuple[str, str], ...] = ()
    volume_stats_period: float = 60.0  # seconds that a volume's measured size holds; <= 0: never
    volume_health: bool = False  # the CSIVolumeHealth gate: metric and event of abnormal volumes
    stats_from_runtime: bool = False  # the PodAndContainerStatsFromCRI gate
    # Yields name, stage and value of each feature gate, for the metrics.
    gates: Callable[[], Iterable[tuple[str, str, bool]]] = tuple
    admission: AdmissionSettings = field(default_factory=AdmissionSettings)
    managers: ManagerSettings = field(default_factory=ManagerSettings)
    sockets: NodeSocketSettings = field(default_factory=NodeSocketSettings)
    own_node: OwnNode | None = None  # None: the agent shows no node object
    recorder_size: int = 0  # bytes of the flight recorder's ring; 0: nothing is recorded
    instance: str = ""  # mark of an embedded agent, which owns only pods with it; "": the daemon


@dataclass(frozen=True, slots=True)
class NodeApiSettings:
    """The settings of the kubelet API. Ports of 0 are not opened."""

    address: str
    port: int = 10250
    read_only_port: int = 0
    cert_dir: Path = Path("/var/lib/kubelet/pki")  # of the certificate made if none is named
    cert_file: str = ""
    key_file: str = ""
    tls_bootstrap: bool = False  # serverTLSBootstrap: the API server signs the certificate
    client_ca_file: str = ""
    min_version: str = ""
    cipher_suites: tuple[str, ...] = ()
    anonymous: bool = False
    webhook_authentication: bool = True
    always_allow: bool = False  # authorization.mode; False: Webhook
    token_ttl: float = 120.0
    authorized_ttl: float = 300.0
    unauthorized_ttl: float = 30.0
    options: ApiOptions = field(default_factory=ApiOptions)
    configz: bytes = b"{}"
    flags: Mapping[str, str] = field(default_factory=dict)  # of the command line, for /flagz

    def is_reachable(self, *, has_reviews: bool) -> bool:
        """Whether the HTTPS port could let any client in.

        Reviews of tokens and accesses need an API server; without one only `AlwaysAllow`
        authorizes.
        """
        reviews_tokens = self.webhook_authentication and has_reviews
        may_be_known = self.anonymous or bool(self.client_ca_file) or reviews_tokens
        return bool(self.port) and may_be_known and (self.always_allow or has_reviews)


@dataclass(frozen=True, slots=True)
class Seams:
    """The agent's seams to the outside; each has a fake in `testing`."""

    runtime: Runtime
    mounter: Mounter
    cgroups: Callable[[CgroupDriver], PodCgroupRemover]  # by driver
    sources: tuple[Source, ...]  # besides the API server
    exit_waiter: ExitWaiter | None
    takeover: Takeover | None = None  # None: no static pods of another kubelet are adopted
    connection: ChildSpec | None = None  # keeps the runtime connected
    machine: tuple[ChildSpec, ...] = ()  # tasks that keep the machine as configured
    cluster: ApiServer | None = None  # None: a standalone node
    node_api: NodeApiSettings | None = None  # None: there is no kubelet API
    exec_orphans: ExecOrphans | None = None  # None: containers' processes are not visible
    script: ContainerScript | None = (
        None  # of a replay: what containers answer; None: they are asked
    )
    clock: WallClock = field(default_factory=SystemClock)
    offload: Offload = thread_offload
    keyring: Callable[[Accounts | None], Keyring] | None = None  # None: only pods' own secrets
    cgroup_tree: Callable[[CgroupDriver], CgroupOperations] | None = None  # None: the runtime
    memory_allocatable: int = 0
    disk_space: Callable[[str], DiskSpace] = disk_space
    kernel_log: Path | None = None  # names the processes killed for memory; None: not read
    memory_events: Callable[[], MemoryEvents] | None = None  # of containers; None: not watched
    plugin_watcher: Callable[[], Watcher] | None = None  # of plugins' sockets; None: no plugins
    device_plugins: OpenDevicePlugin | None = None  # of a replay; None: they are dialed
    claims: ClaimInputs | None = None  # of a replay; None: they are asked for
    devices: BlockDevices | None = None  # for raw block volumes; None: this machine's
    logind: Logind | None = None  # None: this machine's
    signals: Signals | None = None  # None: this machine's
    eviction: EvictionInputs | None = None  # of a replay; None: `signals`, and this machine's
    tmpfs_noswap: bool = False
    meter: Meter = field(default_factory=Meter)  # may hold counts from before the agent
    stats_host: Host | None = None  # where the kernel's files are; None: detected
    tracing: Tracing | None = None  # None: nothing is traced, and no SDK is loaded

    def offload_for(self, purpose: Purpose) -> Offload:
        """Return the threads for blocking work of one purpose, apart from those of others."""
        return offload_for(self.offload, purpose)
