"""The node daemon: an `Agent` on the real world, made from the configuration.

This is where `KubeletConfiguration` and flags become plain values for the rooms, and where
every seam gets its real side: containerd over gRPC, the kernel's mounts and pidfds, the
clock, and the sockets that health and the command line read.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
import trio
from lightkube.models.core_v1 import Pod, Taint

from kubelet_trio.agent import (
    Agent,
    AgentSettings,
    CgroupPolicy,
    ReservedCgroup,
    Seams,
    admission_settings,
    node_api_settings,
    serve_node_page,
)
from kubelet_trio.cgroups import (
    CgroupDriver,
    PodCgroups,
    SystemdBus,
    cgroup_host,
    has_swap_controller,
)
from kubelet_trio.config import (
    PROCESS,
    KubeletConfiguration,
    KubeletFlags,
    Settings,
    eviction_policy,
    reservations,
)
from kubelet_trio.containers import (
    NodeSettings,
    hugepage_sizes,
    is_selinux_on,
    masked_paths,
    read_resolv_conf,
)
from kubelet_trio.credentials import (
    NodeKeyring,
    PullVerification,
    load_providers,
    make_plugins,
)
from kubelet_trio.gc import ContainerPolicy, ImagePolicy, LogRotationPolicy
from kubelet_trio.model import (
    NANO,
    Meter,
    PodUid,
    SystemClock,
    parse_quantity,
    pod_key,
    thread_offload,
    to_units,
)
from kubelet_trio.node import (
    Machine,
    NodeCapacity,
    Reservations,
    host_ips,
    look_up,
    node_capacity,
    read_machine,
)
from kubelet_trio.pleg import PidfdExitWaiter
from kubelet_trio.pods import BackOffPolicy, PodRecord, load_records, wanted_pods
from kubelet_trio.pressure import KMSG, open_memory_events
from kubelet_trio.probes import ProcOrphans
from kubelet_trio.runtimes import make_runtime
from kubelet_trio.server import (
    SOCKET_NAME,
    SocketInUseError,
    add_exec,
    control_router,
    health_router,
    is_healthy,
    open_tcp,
    open_unix,
    serve_http,
)
from kubelet_trio.shutdown import ShutdownPeriod, shutdown_periods
from kubelet_trio.sources import FileSource, HttpSource, Source
from kubelet_trio.supervision import ChildSpec, GaveUpError
from kubelet_trio.volumes import KernelMounter, tmpfs_noswap_supported

if TYPE_CHECKING:
    from kubelet_trio.agent import Apis, Cluster

log = structlog.get_logger()

# How long `--runonce` waits for its pods.
_RUN_ONCE_LIMIT = 600.0


async def run_agent(
    settings: Settings,
    *,
    stop: trio.Event,
    task_status: trio.TaskStatus[Callable[[], bool]] = trio.TASK_STATUS_IGNORED,
) -> int:
    """Run the agent until `stop` is set, and return the process' exit code.

    Says it has started, with the function that tells the watchdog whether it is well, once
    the whole tree runs, connected or not.
    """
    async with AsyncExitStack() as stack:
        try:
            pods_dir = Path(settings.flags.root_dir) / "pods"
            records = await thread_offload(load_records, pods_dir)
            apis = await _open_apis(settings, stack)
            looked_up = await look_up(
                _node_name(settings),
                settings.flags.node_ip,
                only_if_needed=not settings.flags.kubeconfig,
            )
            agent = build_agent(settings, records, apis, looked_up)
        except (OSError, ValueError) as exc:
            log.error("agent.refused", error=str(exc))
            return 1
        return await _run(agent, settings, stop, task_status)


async def _open_apis(settings: Settings, stack: AsyncExitStack) -> Apis | None:
    if not settings.flags.kubeconfig:
        return None
    # An HTTP client and what stands on it: memory that a node without a cluster keeps.
    from kubelet_trio.agent import open_apis

    opened = open_apis(settings, _node_name(settings), SystemClock())
    return await stack.enter_async_context(opened)


async def _run(
    agent: Agent,
    settings: Settings,
    stop: trio.Event,
    task_status: trio.TaskStatus[Callable[[], bool]],
) -> int:
    code = 0
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(agent.run)
            task_status.started(partial(is_healthy, agent.check_functions()))
            log.info("agent.started", node=agent.settings.node.node_name)
            nursery.start_soon(_stop_when_asked, agent, stop, settings.flags.remove_pods_on_exit)
            if settings.config.run_once:
                code = await _run_once(agent)
                stop.set()
    except* (GaveUpError, SocketInUseError) as failures:
        for failure in failures.exceptions:
            log.error("agent.failed", error=str(failure))
        code = 1
    return code


async def _stop_when_asked(agent: Agent, stop: trio.Event, remove_pods: bool) -> None:
    await stop.wait()
    if remove_pods:
        log.info("agent.removing_pods", pods=len(agent.pods.value))
        await agent.remove_pods()
    agent.stop()


async def _run_once(agent: Agent) -> int:
    """Wait until every pod runs or has ended; return 0 if each does, or has succeeded."""
    with trio.move_on_after(_RUN_ONCE_LIMIT):
        await agent.wait_delivered()
        await agent.pods.wait_value(lambda pods: all(_has_come_up(p) for p in pods.values()))
    failed = [p for p in agent.pods.value.values() if not _is_well(p)]
    for pod in failed:
        status = pod.status
        log.error(
            "runonce.pod_failed",
            pod=str(pod_key(pod)),
            phase=status.phase if status is not None else None,
        )
    log.info("runonce.done", pods=len(agent.pods.value), failed=len(failed))
    return 1 if failed else 0


def _has_come_up(pod: Pod) -> bool:
    status = pod.status
    if status is None:
        return False
    ready = any(c.type == "Ready" and c.status == "True" for c in status.conditions or ())
    return ready or status.phase in ("Succeeded", "Failed")


def _is_well(pod: Pod) -> bool:
    return _has_come_up(pod) and pod.status is not None and pod.status.phase != "Failed"


def build_agent(
    settings: Settings,
    records: Mapping[PodUid, PodRecord],
    apis: Apis | None = None,
    looked_up: Sequence[str] = (),
) -> Agent:
    """Make the agent that the configuration asks for.

    `apis` is what `--kubeconfig` names, `looked_up` what the node's name means (`look_up`).

    Raises OSError or ValueError, naming it, for what of the host cannot be read or parsed.
    """
    config, flags = settings.config, settings.flags
    machine = read_machine(Path(flags.root_dir))
    reserved = reservations(
        config,
        machine.cpus,
        ignore_eviction=flags.experimental_allocatable_ignore_eviction,
    )
    capacity = node_capacity(
        machine, reserved, max_pods=config.max_pods, pods_per_core=config.pods_per_core
    )
    node = _node_settings(settings, machine, capacity, looked_up)
    seam = make_runtime(
        config.container_runtime_endpoint,
        node.root_dir,
        image_endpoint=config.image_service_endpoint,
        request_timeout=config.runtime_request_timeout,
        allow_root=flags.process_allow_root,
    )
    host = cgroup_host()

    def cgroups(driver: CgroupDriver) -> PodCgroups:
        units = SystemdBus(host.version) if driver == "systemd" else None
        return PodCgroups(host, driver, thread_offload, config.cgroup_root, units)

    cluster = _cluster(settings, node, capacity, apis)
    meter = apis.meter if apis is not None else Meter()
    seams = Seams(
        runtime=seam.runtime,
        connection=seam.connection,
        mounter=KernelMounter(),
        cgroups=cgroups,
        # The process runtime makes what it needs; without QoS cgroups nobody makes any.
        cgroup_tree=cgroups if _keeps_cgroups(config) else None,
        sources=(
            *_sources(config, node, wanted_pods(records)),
            *((cluster.source,) if cluster is not None else ()),
        ),
        cluster=cluster,
        exit_waiter=PidfdExitWaiter(),
        exec_orphans=ProcOrphans(thread_offload),
        kernel_log=KMSG,
        memory_events=lambda: open_memory_events(host),
        servers=lambda agent: _servers(agent, config, flags),
        keyring=_keyring(flags, node.root_dir, meter),
        node_api=node_api_settings(settings),
        memory_allocatable=node.allocatable["memory"] // NANO,
        tmpfs_noswap=tmpfs_noswap_supported(os.uname().release),
        meter=meter,
    )
    return Agent(_agent_settings(settings, node, capacity, reserved), seams, records)


def _agent_settings(
    settings: Settings, node: NodeSettings, capacity: NodeCapacity, reserved: Reservations
) -> AgentSettings:
    """Return what configuration and flags say of each room."""
    config, flags = settings.config, settings.flags
    return AgentSettings(
        node,
        runtime_endpoint=config.container_runtime_endpoint,
        sync_period=config.sync_frequency,
        parallel_pulls=_parallel_pulls(config),
        crash_back_off=BackOffPolicy(
            base=flags.crash_loop_backoff_base,
            cap=config.crash_loop_back_off.max_container_restart_period,
            spare_clean_exits=flags.crash_loop_backoff_exempt_clean_exits,
        ),
        volume_stats_period=config.volume_stats_agg_period,
        log_rotation=LogRotationPolicy(
            max_size=to_units(parse_quantity(config.container_log_max_size)),
            max_files=config.container_log_max_files,
            max_workers=config.container_log_max_workers,
            interval=config.container_log_monitor_interval,
        ),
        container_gc=ContainerPolicy(
            min_age=flags.minimum_container_ttl_duration,
            max_per_container=flags.maximum_dead_containers_per_container,
            max_total=flags.maximum_dead_containers,
        ),
        image_gc=ImagePolicy(
            high_threshold=config.image_gc_high_threshold_percent,
            low_threshold=config.image_gc_low_threshold_percent,
            min_age=config.image_minimum_gc_age,
            max_age=config.image_maximum_gc_age,
            keep=tuple(flags.image_gc_keep),
        ),
        pull_verification=_pull_verification(config),
        sandbox_image=flags.pod_infra_container_image,
        eviction=eviction_policy(config),
        shutdown=_shutdown_periods(config),
        cgroups=_cgroup_policy(config, capacity, reserved),
        admission=admission_settings(
            node.node_name,
            labels=flags.node_labels,
            taints=[Taint(t.effect, t.key, value=t.value) for t in config.register_with_taints],
            allowed_unsafe_sysctls=config.allowed_unsafe_sysctls,
            max_pods=node.allocatable["pods"] // NANO,
        ),
        ids_per_pod=config.user_namespaces.ids_per_pod,
        notes=settings.notes,
    )


def _cluster(
    settings: Settings, node: NodeSettings, capacity: NodeCapacity, apis: Apis | None
) -> Cluster | None:
    if apis is None:
        return None
    from kubelet_trio.agent import make_cluster

    return make_cluster(settings, node, capacity, apis, SystemClock())


def _cgroup_policy(
    config: KubeletConfiguration, capacity: NodeCapacity, reserved: Reservations
) -> CgroupPolicy:
    """Return the policy that a validated configuration asks for."""
    enforced = set(config.enforce_node_allocatable)
    percent = config.qos_reserved.get("memory")
    return CgroupPolicy(
        # The cgroup of all pods is limited in any case: its default CPU weight would starve it.
        budget=capacity.enforceable if "pods" in enforced else capacity.internal,
        pids_limit=config.pod_pids_limit,
        reserved=tuple(_reserved_cgroups(config, enforced, reserved)),
        reserve_percent=int(percent.removesuffix("%")) if percent else None,
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


def _keeps_cgroups(config: KubeletConfiguration) -> bool:
    return config.cgroups_per_qos and config.container_runtime_endpoint != PROCESS


def _node_name(settings: Settings) -> str:
    return (settings.flags.hostname_override or socket.gethostname()).strip().lower()


def _node_settings(
    settings: Settings, machine: Machine, capacity: NodeCapacity, looked_up: Sequence[str]
) -> NodeSettings:
    config, flags = settings.config, settings.flags
    hostname = socket.gethostname()
    host = cgroup_host()
    return NodeSettings(
        node_name=_node_name(settings),
        hostname=hostname,
        root_dir=Path(flags.root_dir),
        pod_logs_dir=Path(config.pod_logs_dir),
        container_logs_dir=_container_logs_dir(config),
        cluster_dns=tuple(config.cluster_dns),
        cluster_domain=config.cluster_domain,
        resolv_conf=read_resolv_conf(config.resolv_conf),
        host_ips=host_ips(flags.node_ip, _node_name(settings), looked_up),
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
    )


def _pull_verification(config: KubeletConfiguration) -> PullVerification | None:
    """Return the policy for images on the node; None where the runtime has none."""
    if config.container_runtime_endpoint == PROCESS:
        return None
    return PullVerification(
        config.image_pull_credentials_verification_policy,
        tuple(config.preloaded_images_verification_allowlist),
    )


def _keyring(flags: KubeletFlags, root_dir: Path, meter: Meter) -> NodeKeyring:
    """Return what the node logs in with. Raises OSError and ValueError, naming the file."""
    config, programs = (
        flags.image_credential_provider_config,
        flags.image_credential_provider_bin_dir,
    )
    if bool(config) != bool(programs):
        raise ValueError(
            "--image-credential-provider-config and --image-credential-provider-bin-dir "
            "go together: set both"
        )
    providers = load_providers(Path(config)) if config else ()
    plugins = make_plugins(providers, Path(programs), meter)
    return NodeKeyring(root_dir, thread_offload, plugins)


def _container_logs_dir(config: KubeletConfiguration) -> Path:
    """Return where the links for log collectors go: beside the pods' logs.

    Upstream's /var/log/containers is a constant, the neighbour of the default /var/log/pods.
    A node whose pod logs are elsewhere (two agents on one machine, say) keeps its links there.
    """
    return Path(config.pod_logs_dir).parent / "containers"


def _shutdown_periods(config: KubeletConfiguration) -> tuple[ShutdownPeriod, ...]:
    return shutdown_periods(
        config.shutdown_grace_period,
        config.shutdown_grace_period_critical_pods,
        [
            ShutdownPeriod(period.priority, period.shutdown_grace_period_seconds)
            for period in config.shutdown_grace_period_by_pod_priority
        ],
    )


def _parallel_pulls(config: KubeletConfiguration) -> int | None:
    if config.serialize_image_pulls:
        return 1
    return config.max_parallel_image_pulls


def _sources(
    config: KubeletConfiguration, node: NodeSettings, last_good: list[Pod]
) -> tuple[Source, ...]:
    sources: list[Source] = []
    if config.static_pod_path:
        sources.append(
            FileSource(
                Path(config.static_pod_path),
                node.node_name,
                interval=config.file_check_frequency,
                last_good=last_good,
            )
        )
    if config.static_pod_url:
        sources.append(
            HttpSource(
                config.static_pod_url,
                node.node_name,
                headers=[
                    (name, value)
                    for name, values in config.static_pod_url_header.items()
                    for value in values
                ],
                interval=config.http_check_frequency,
            )
        )
    return tuple(sources)


def _servers(
    agent: Agent, config: KubeletConfiguration, flags: KubeletFlags
) -> tuple[ChildSpec, ...]:
    servers = [ChildSpec("control", partial(_serve_control, agent))]
    if config.healthz_port:
        servers.insert(0, ChildSpec("healthz", partial(_serve_health, agent, config)))
    if flags.ui_port:
        servers.append(ChildSpec("ui", partial(serve_node_page, agent, flags.ui_port)))
    return tuple(servers)


async def _serve_health(
    agent: Agent,
    config: KubeletConfiguration,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    listeners = await open_tcp(config.healthz_bind_address, config.healthz_port)
    router = health_router(agent.check_functions(), agent.meter)
    await serve_http(router, listeners, task_status=task_status)


async def _serve_control(
    agent: Agent, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    path = agent.settings.node.root_dir / SOCKET_NAME
    router = control_router(agent)
    add_exec(router, agent)
    try:
        await serve_http(router, [open_unix(path)], task_status=task_status)
    finally:
        path.unlink(missing_ok=True)
