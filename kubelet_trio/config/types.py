"""KubeletConfiguration (`kubelet.config.k8s.io/v1beta1`) with all fields and upstream's defaults.

Attributes are upstream's names in snake case (`imageGCHighThresholdPercent` is
`image_gc_high_threshold_percent`); `rename` converts between them. Durations are in seconds. The
defaults are those of a configuration file. The Go kubelet has a few less safe ones without a file
(anonymous requests, AlwaysAllow, the read-only port); here the file's defaults always hold.

Source: k8s.io/kubelet/config/v1beta1/types.go and pkg/kubelet/apis/config/v1beta1/defaults.go.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import field

from kubelet_trio.durations import Duration
from kubelet_trio.model import DEFAULT_EVICTION_HARD

GROUP_VERSION = "kubelet.config.k8s.io/v1beta1"
KIND = "KubeletConfiguration"

# Go writes initialisms in one case, and so do the JSON names.
_ACRONYMS = {
    "api": "API", "ca": "CA", "cfs": "CFS", "cidr": "CIDR", "cpus": "CPUs", "dns": "DNS",
    "gc": "GC", "http": "HTTP", "id": "ID", "iptables": "IPTables", "oom": "OOM", "qos": "QOS",
    "qps": "QPS", "tls": "TLS", "ttl": "TTL", "url": "URL",
}  # fmt: skip


def rename(name: str) -> str:
    """Return upstream's spelling of an attribute: `kube_api_qps` is `kubeAPIQPS`."""
    first, *rest = name.split("_")
    return first + "".join(_ACRONYMS.get(word, word.capitalize()) for word in rest)


class Block(msgspec.Struct, frozen=True, kw_only=True, rename=rename):
    """A part of the configuration."""


class AnonymousAuthentication(Block, frozen=True):
    enabled: bool = False


class WebhookAuthentication(Block, frozen=True):
    enabled: bool = True
    cache_ttl: Duration = Duration(120)


class X509Authentication(Block, frozen=True):
    client_ca_file: str = ""


class Authentication(Block, frozen=True):
    x509: X509Authentication = X509Authentication()
    webhook: WebhookAuthentication = WebhookAuthentication()
    anonymous: AnonymousAuthentication = AnonymousAuthentication()


class WebhookAuthorization(Block, frozen=True):
    cache_authorized_ttl: Duration = Duration(300)
    cache_unauthorized_ttl: Duration = Duration(30)


class Authorization(Block, frozen=True):
    mode: str = "Webhook"
    webhook: WebhookAuthorization = WebhookAuthorization()


class MemorySwap(Block, frozen=True):
    swap_behavior: str = ""


class CrashLoopBackOff(Block, frozen=True):
    max_container_restart_period: Duration = Duration(300)


class MemoryReservation(Block, frozen=True):
    numa_node: int
    limits: dict[str, str]


class ShutdownGracePeriodByPodPriority(Block, frozen=True):
    priority: int
    shutdown_grace_period_seconds: int


class UserNamespaces(Block, frozen=True):
    ids_per_pod: int = 65536


class Tracing(Block, frozen=True):
    endpoint: str = ""
    sampling_rate_per_million: int = 0


class Taint(Block, frozen=True):
    key: str
    effect: str
    value: str = ""


class LoggingOptions(Block, frozen=True):
    split_stream: bool = False
    info_buffer_size: str = "0"


class LoggingFormats(Block, frozen=True):
    text: LoggingOptions = LoggingOptions()
    json: LoggingOptions = LoggingOptions()


class VModule(Block, frozen=True):
    file_pattern: str
    verbosity: int


class Logging(Block, frozen=True):
    format: str = "text"  # if not set: text on a terminal, JSON elsewhere (Settings.log_format)
    flush_frequency: Duration = Duration(5)
    verbosity: int = 0
    vmodule: list[VModule] = field(default_factory=list)
    options: LoggingFormats = LoggingFormats()


class KubeletConfiguration(Block, frozen=True):
    """The node's settings. Treat its lists and maps as frozen, too."""

    api_version: str = GROUP_VERSION
    kind: str = KIND
    enable_server: bool = True
    static_pod_path: str = ""
    pod_logs_dir: str = "/var/log/pods"
    sync_frequency: Duration = Duration(60)
    file_check_frequency: Duration = Duration(20)
    http_check_frequency: Duration = Duration(20)
    static_pod_url: str = ""
    static_pod_url_header: dict[str, list[str]] = field(default_factory=dict)
    address: str = "0.0.0.0"
    port: int = 10250
    read_only_port: int = 0
    tls_cert_file: str = ""
    tls_private_key_file: str = ""
    tls_cipher_suites: list[str] = field(default_factory=list)
    tls_curve_preferences: list[int] = field(default_factory=list)
    tls_min_version: str = ""
    rotate_certificates: bool = False
    server_tls_bootstrap: bool = False
    authentication: Authentication = Authentication()
    authorization: Authorization = Authorization()
    registry_pull_qps: int = 5
    registry_burst: int = 10
    image_pull_credentials_verification_policy: str = "NeverVerifyPreloadedImages"
    preloaded_images_verification_allowlist: list[str] = field(default_factory=list)
    event_record_qps: int = 50
    event_burst: int = 100
    enable_debugging_handlers: bool = True
    enable_contention_profiling: bool = False
    healthz_port: int = 10248
    healthz_bind_address: str = "127.0.0.1"
    oom_score_adj: int = -999
    cluster_domain: str = ""
    cluster_dns: list[str] = field(default_factory=list)
    streaming_connection_idle_timeout: Duration = Duration(4 * 3600)
    node_status_update_frequency: Duration = Duration(10)
    node_status_report_frequency: Duration = Duration(300)
    node_lease_duration_seconds: int = 40
    image_minimum_gc_age: Duration = Duration(120)
    image_maximum_gc_age: Duration = Duration(0)
    image_gc_high_threshold_percent: int = 85
    image_gc_low_threshold_percent: int = 80
    volume_stats_agg_period: Duration = Duration(60)
    kubelet_cgroups: str = ""
    system_cgroups: str = ""
    cgroup_root: str = ""
    cgroups_per_qos: bool = True
    cgroup_driver: str = "cgroupfs"
    cpu_manager_policy: str = "none"
    # Unset differs from false, which is refused on cgroup v1.
    single_process_oom_kill: bool | None = None
    cpu_manager_policy_options: dict[str, str] = field(default_factory=dict)
    cpu_manager_reconcile_period: Duration = Duration(10)
    memory_manager_policy: str = "None"
    topology_manager_policy: str = "none"
    topology_manager_scope: str = "container"
    topology_manager_policy_options: dict[str, str] = field(default_factory=dict)
    qos_reserved: dict[str, str] = field(default_factory=dict)
    runtime_request_timeout: Duration = Duration(120)
    hairpin_mode: str = "promiscuous-bridge"
    max_pods: int = 110
    pod_cidr: str = ""
    pod_pids_limit: int = -1
    resolv_conf: str = "/etc/resolv.conf"
    run_once: bool = False
    cpu_cfs_quota: bool = True
    cpu_cfs_quota_period: Duration = Duration(0.1)
    node_status_max_images: int = 50
    max_open_files: int = 1_000_000
    content_type: str = "application/vnd.kubernetes.protobuf"
    kube_api_qps: int = 50
    kube_api_burst: int = 100
    serialize_image_pulls: bool = True
    max_parallel_image_pulls: int | None = None
    # An empty map has no threshold, unlike none: only nil has defaults upstream (loadConfigFile).
    eviction_hard: dict[str, str] = field(default_factory=lambda: dict(DEFAULT_EVICTION_HARD))
    eviction_soft: dict[str, str] = field(default_factory=dict)
    eviction_soft_grace_period: dict[str, str] = field(default_factory=dict)
    eviction_pressure_transition_period: Duration = Duration(300)
    eviction_max_pod_grace_period: int = 0
    eviction_minimum_reclaim: dict[str, str] = field(default_factory=dict)
    merge_default_eviction_settings: bool = False
    pods_per_core: int = 0
    enable_controller_attach_detach: bool = True
    protect_kernel_defaults: bool = False
    make_iptables_util_chains: bool = True
    iptables_masquerade_bit: int = 14
    iptables_drop_bit: int = 15
    feature_gates: dict[str, bool] = field(default_factory=dict)
    fail_swap_on: bool = True
    memory_swap: MemorySwap = MemorySwap()
    container_log_max_size: str = "10Mi"
    container_log_max_files: int = 5
    container_log_max_workers: int = 1
    container_log_monitor_interval: Duration = Duration(10)
    config_map_and_secret_change_detection_strategy: str = "Watch"
    system_reserved: dict[str, str] = field(default_factory=dict)
    kube_reserved: dict[str, str] = field(default_factory=dict)
    reserved_system_cpus: str = ""
    show_hidden_metrics_for_version: str = ""
    system_reserved_cgroup: str = ""
    kube_reserved_cgroup: str = ""
    enforce_node_allocatable: list[str] = field(default_factory=lambda: ["pods"])
    allowed_unsafe_sysctls: list[str] = field(default_factory=list)
    default_pod_sysctls: dict[str, str] = field(default_factory=dict)
    volume_plugin_dir: str = "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/"
    provider_id: str = ""
    kernel_memcg_notification: bool = False
    logging: Logging = Logging()
    enable_system_log_handler: bool = True
    enable_system_log_query: bool = False
    shutdown_grace_period: Duration = Duration(0)
    shutdown_grace_period_critical_pods: Duration = Duration(0)
    shutdown_grace_period_by_pod_priority: list[ShutdownGracePeriodByPodPriority] = field(
        default_factory=list
    )
    crash_loop_back_off: CrashLoopBackOff = CrashLoopBackOff()
    reserved_memory: list[MemoryReservation] = field(default_factory=list)
    enable_profiling_handler: bool = True
    enable_debug_flags_handler: bool = True
    seccomp_default: bool = False
    memory_throttling_factor: float = 0.9
    memory_reservation_policy: str = "None"
    register_with_taints: list[Taint] = field(default_factory=list)
    register_node: bool = True
    tracing: Tracing | None = None
    local_storage_capacity_isolation: bool = True
    container_runtime_endpoint: str = "unix:///run/containerd/containerd.sock"
    image_service_endpoint: str = ""
    fail_cgroup_v1: bool = True
    user_namespaces: UserNamespaces = UserNamespaces()
    offline_pods: bool = False  # kubelet-trio only
    flight_recorder_size: str = "32Mi"  # kubelet-trio only


def encode_hook(value: Any) -> Any:
    """Encode a Duration as Go writes it, for msgspec."""
    if isinstance(value, Duration):
        return str(value)
    raise NotImplementedError(type(value))


DEFAULTS = KubeletConfiguration()
