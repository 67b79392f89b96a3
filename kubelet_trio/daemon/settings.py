"""Turns the configuration and flags into plain values for the rooms."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from lightkube.models.core_v1 import Taint

from kubelet_trio.agent import (
    AgentSettings,
    NodeApiSettings,
    NodeSocketSettings,
    admission_settings,
)
from kubelet_trio.cgroups import (
    cgroup_host,
    has_swap_controller,
)
from kubelet_trio.config import (
    PROCESS,
    KubeletConfiguration,
    Settings,
    encode_shown_config,
    eviction_policy,
    gate_values,
    manager_settings,
)
from kubelet_trio.containers import (
    NodeSettings,
    ResolvConf,
    hugepage_sizes,
    is_selinux_on,
    masked_paths,
    read_resolv_conf,
)
from kubelet_trio.credentials import (
    PullVerification,
)
from kubelet_trio.daemon.identity import own_node
from kubelet_trio.gc import ContainerPolicy, ImagePolicy, LogRotationPolicy
from kubelet_trio.host import Denied
from kubelet_trio.model import (
    NANO,
    parse_quantity,
    to_units,
)
from kubelet_trio.node import (
    Machine,
    NodeCapacity,
    Reservations,
    host_ips,
    reserved_amounts,
)
from kubelet_trio.pods import BackOffPolicy, CgroupPolicy, ReservedCgroup
from kubelet_trio.server import ApiOptions
from kubelet_trio.shutdown import ShutdownPeriod, shutdown_periods

_REDUCED_BACK_OFF = 1.0  # s: reducedInitialCrashLoopBackOff


def node_name(settings: Settings) -> str:
    """Return the node's name: `--hostname-override`, else the host's name."""
    # GetHostname in k8s.io/component-helpers/node/util: trimmed, in lower case.
    return (settings.flags.hostname_override or socket.gethostname()).strip().lower()


def node_settings(
    settings: Settings, machine: Machine, capacity: NodeCapacity, looked_up: Sequence[str]
) -> NodeSettings:
    """Return the node's settings for pods. Raises OSError or ValueError, naming the file."""
    config, flags = settings.config, settings.flags
    hostname = socket.gethostname()
    host = cgroup_host()
    return NodeSettings(
        node_name=node_name(settings),
        hostname=hostname,
        root_dir=Path(flags.root_dir),
        pod_logs_dir=Path(config.pod_logs_dir),
        volume_plugin_dir=Path(config.volume_plugin_dir),
        container_logs_dir=_container_logs_dir(config),
        cluster_dns=tuple(config.cluster_dns),
        cluster_domain=config.cluster_domain,
        standalone=not flags.kubeconfig,
        resolv_conf=_resolv_conf(config.resolv_conf),
        resolver_file=config.resolv_conf,
        host_ips=host_ips(flags.node_ip, node_name(settings), looked_up),
        cgroup_driver="systemd" if config.cgroup_driver == "systemd" else "cgroupfs",
        cgroups_per_qos=config.cgroups_per_qos,
        cgroup_root=config.cgroup_root,
        cgroup_version=host.version,
        cpu_cfs_quota=config.cpu_cfs_quota,
        cpu_cfs_quota_period=config.cpu_cfs_quota_period,
        memory_capacity=machine.memory,
        capacity=capacity.capacity,
        allocatable=capacity.allocatable,
        hugepage_sizes=hugepage_sizes(),
        swap_controller=has_swap_controller(host),
        swap_capacity=machine.swap,
        limited_swap=config.memory_swap.swap_behavior == "LimitedSwap",
        memory_qos=config.feature_gates.get("MemoryQoS", False),
        memory_throttling_factor=config.memory_throttling_factor,
        memory_reservation=config.memory_reservation_policy == "TieredReservation",
        single_process_oom_kill=bool(config.single_process_oom_kill),
        seccomp_default=config.seccomp_default,
        masked_paths=masked_paths(),
        selinux=is_selinux_on(),
        selinux_mount=config.feature_gates.get("SELinuxMount", False),
        stop_signals=config.feature_gates.get("ContainerStopSignals", False),
        pod_level_resizes=config.feature_gates.get("InPlacePodLevelResourcesVerticalScaling", True),
        image_digests=config.feature_gates.get("ImageVolumeWithDigest", False),
    )


def _resolv_conf(path: str) -> ResolvConf | None:
    """Return the host's resolver settings; none of them if its file cannot be read yet.

    It is read again for each sandbox, and `report_dns_limits` says what is wrong with it.
    """
    try:
        return read_resolv_conf(path)
    except (OSError, ValueError):
        return ResolvConf()


def agent_settings(
    settings: Settings,
    node: NodeSettings,
    capacity: NodeCapacity,
    reserved: Reservations,
    denied: Denied = Denied(),  # noqa: B008  # frozen
) -> AgentSettings:
    """Return the settings of the agent."""
    config, flags = settings.config, settings.flags
    return AgentSettings(
        node,
        own_node=own_node(settings, node, capacity),
        runtime_endpoint=config.container_runtime_endpoint,
        sync_period=config.sync_frequency,
        request_timeout=config.runtime_request_timeout,
        parallel_pulls=_parallel_pulls(config),
        pull_qps=config.registry_pull_qps,
        pull_burst=config.registry_burst,
        crash_back_off=_crash_back_off(settings),
        system_cgroups=tuple(_system_cgroups(settings)),
        volume_stats_period=config.volume_stats_agg_period,
        volume_health=config.feature_gates.get("CSIVolumeHealth", False),
        stats_from_runtime=config.feature_gates.get("PodAndContainerStatsFromCRI", False),
        gates=partial(gate_values, config.feature_gates),
        log_rotation=_log_rotation(config),
        container_gc=ContainerPolicy(
            min_age=flags.minimum_container_ttl_duration,
            max_per_container=flags.maximum_dead_containers_per_container,
            max_total=flags.maximum_dead_containers,
            clears_unknown_logs=_has_own_logs(settings),
        ),
        image_gc=ImagePolicy(
            high_threshold=config.image_gc_high_threshold_percent,
            low_threshold=config.image_gc_low_threshold_percent,
            min_age=config.image_minimum_gc_age,
            max_age=config.image_maximum_gc_age,
            keep=tuple(flags.image_gc_keep),
        ),
        pull_verification=_pull_verification(config),
        pod_cidr=config.pod_cidr,
        sandbox_image=flags.pod_infra_container_image,
        eviction=eviction_policy(config),
        shutdown=_shutdown_periods(config),
        cgroups=_cgroup_policy(config, capacity, reserved, denied),
        admission=admission_settings(
            node.node_name,
            labels=flags.node_labels,
            taints=[Taint(t.effect, t.key, value=t.value) for t in config.register_with_taints],
            allowed_unsafe_sysctls=config.allowed_unsafe_sysctls,
            max_pods=node.allocatable["pods"] // NANO,
            pod_level_resources=config.feature_gates.get("PodLevelResources", True),
        ),
        managers=manager_settings(config, reserved_amounts(reserved, capacity.capacity)),
        ids_per_pod=config.user_namespaces.ids_per_pod,
        sockets=node_socket_settings(config),
        notes=settings.notes,
        recorder_size=to_units(parse_quantity(config.flight_recorder_size)),
    )


def _log_rotation(config: KubeletConfiguration) -> LogRotationPolicy:
    return LogRotationPolicy(
        max_size=to_units(parse_quantity(config.container_log_max_size)),
        max_files=config.container_log_max_files,
        max_workers=config.container_log_max_workers,
        interval=config.container_log_monitor_interval,
    )


def _crash_back_off(settings: Settings) -> BackOffPolicy:
    config, flags = settings.config, settings.flags
    base: float = flags.crash_loop_backoff_base
    if config.feature_gates.get("ReduceDefaultCrashLoopBackOffDecay", False):
        base = min(base, _REDUCED_BACK_OFF)
    return BackOffPolicy(
        base=base,
        cap=config.crash_loop_back_off.max_container_restart_period,
        spare_clean_exits=flags.crash_loop_backoff_exempt_clean_exits,
    )


def node_socket_settings(config: KubeletConfiguration) -> NodeSocketSettings:
    """Return which gRPC APIs the node's programs find."""
    gates = config.feature_gates
    return NodeSocketSettings(
        pod_resources=True,
        use_active_pods=gates.get("KubeletPodResourcesListUseActivePods", True),
        pods_api=gates.get("PodsAPI", False),
    )


def _pull_verification(config: KubeletConfiguration) -> PullVerification | None:
    """Return the policy for images on the node; None if every pod may use every image."""
    is_on = config.feature_gates.get("KubeletEnsureSecretPulledImages", True)
    if not is_on or config.container_runtime_endpoint == PROCESS:  # which has no images
        return None
    return PullVerification(
        config.image_pull_credentials_verification_policy,
        tuple(config.preloaded_images_verification_allowlist),
    )


def _cgroup_policy(
    config: KubeletConfiguration, capacity: NodeCapacity, reserved: Reservations, denied: Denied
) -> CgroupPolicy:
    """Return the cgroup policy of a validated configuration."""
    enforced = set(config.enforce_node_allocatable)
    percent = config.qos_reserved.get("memory")
    return CgroupPolicy(
        # Even if not enforced: with the default CPU weight the pods would starve
        # (enforceNodeAllocatableCgroups in pkg/kubelet/cm).
        budget=capacity.enforceable if "pods" in enforced else capacity.internal,
        pids_limit=config.pod_pids_limit,
        reserved=tuple(_reserved_cgroups(config, enforced, reserved)),
        reserve_percent=int(percent.removesuffix("%")) if percent else None,
        # Without the daemons' part, enforced or not (`Start` in pkg/kubelet/cm).
        allocatable_memory=to_units(capacity.enforceable["memory"]),
        is_denied=bool(denied.cgroups.denied),
        known_missing=denied.controllers,
    )


def _reserved_cgroups(
    config: KubeletConfiguration, enforced: set[str], reserved: Reservations
) -> Iterator[ReservedCgroup]:
    places: tuple[tuple[str, str, str, Mapping[str, int]], ...] = (
        ("System Reserved", "system-reserved", config.system_reserved_cgroup, reserved.system),
        ("Kube Reserved", "kube-reserved", config.kube_reserved_cgroup, reserved.kube),
    )
    for label, key, path, budget in places:
        if key in enforced:
            yield ReservedCgroup(label, path, budget)
        elif key + "-compressible" in enforced:
            yield ReservedCgroup(f"{label} Compressible", path, budget, compressible_only=True)


def _system_cgroups(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield the system containers of the stats summary, each with its cgroup."""
    # SystemContainerRuntime and SystemContainerMisc of the stats API.
    named = (("runtime", settings.flags.runtime_cgroups), ("misc", settings.config.system_cgroups))
    for name, path in named:
        if path:
            yield name, "/" + path.strip("/")


def keeps_cgroups(config: KubeletConfiguration) -> bool:
    """Whether this agent makes the cgroups of pods and of QoS classes."""
    return config.cgroups_per_qos and config.container_runtime_endpoint != PROCESS


def _container_logs_dir(config: KubeletConfiguration) -> Path:
    """Return the directory of links for log collectors, next to that of the pods' logs."""
    # Upstream's /var/log/containers is a constant, next to the default /var/log/pods. A node with
    # another podLogsDir, such as the second agent of a machine, keeps its links next to that.
    return Path(config.pod_logs_dir).parent / "containers"


def _shutdown_periods(config: KubeletConfiguration) -> tuple[ShutdownPeriod, ...]:
    if not config.feature_gates.get("GracefulNodeShutdown", True):
        return ()
    return shutdown_periods(
        config.shutdown_grace_period,
        config.shutdown_grace_period_critical_pods,
        [
            ShutdownPeriod(period.priority, period.shutdown_grace_period_seconds)
            for period in config.shutdown_grace_period_by_pod_priority
        ],
    )


def _parallel_pulls(config: KubeletConfiguration) -> int | None:
    # Validation allows no maxParallelImagePulls above 1 together with serializeImagePulls.
    if config.serialize_image_pulls:
        return 1
    return config.max_parallel_image_pulls


def node_api_settings(settings: Settings) -> NodeApiSettings | None:
    """Return the settings of the kubelet API; None if `enableServer` is off."""
    config = settings.config
    if not config.enable_server:
        return None
    authentication, authorization = config.authentication, config.authorization
    return NodeApiSettings(
        address=config.address,
        port=config.port,
        read_only_port=config.read_only_port,
        cert_dir=Path(settings.flags.cert_dir),
        cert_file=config.tls_cert_file,
        key_file=config.tls_private_key_file,
        tls_bootstrap=config.server_tls_bootstrap,
        client_ca_file=authentication.x509.client_ca_file,
        min_version=config.tls_min_version,
        cipher_suites=tuple(config.tls_cipher_suites),
        anonymous=authentication.anonymous.enabled,
        webhook_authentication=authentication.webhook.enabled,
        always_allow=authorization.mode == "AlwaysAllow",
        token_ttl=authentication.webhook.cache_ttl,
        authorized_ttl=authorization.webhook.cache_authorized_ttl,
        unauthorized_ttl=authorization.webhook.cache_unauthorized_ttl,
        options=ApiOptions(
            enable_debugging_handlers=config.enable_debugging_handlers,
            enable_profiling_handler=config.enable_profiling_handler,
            enable_debug_flags_handler=config.enable_debug_flags_handler,
            enable_system_log_handler=config.enable_system_log_handler,
            enable_system_log_query=config.enable_system_log_query,
            checkpoints=config.feature_gates.get("ContainerCheckpoint", True),
            split_log_streams=config.feature_gates.get("PodLogsQuerySplitStreams", False),
            streaming_idle_timeout=config.streaming_connection_idle_timeout,
        ),
        configz=encode_shown_config(config),
        flags={
            name.replace("_", "-"): str(value) for name, value in asdict(settings.flags).items()
        },
    )


def _has_own_logs(settings: Settings) -> bool:
    """Whether whatever is in podLogsDir is this agent's.

    The agent of a CRI runtime is its machine's kubelet. One of processes may be tried beside that
    kubelet, in the same default directory.
    """
    config = settings.config
    if config.container_runtime_endpoint != PROCESS:
        return True
    return Path(settings.flags.root_dir) in Path(config.pod_logs_dir).parents
