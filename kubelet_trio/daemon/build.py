"""Builds the daemon's agent, each seam with its real implementation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import trio
from lightkube.models.core_v1 import Pod

from kubelet_trio.agent import Agent, Seams, make_agent, node_page, node_page_child
from kubelet_trio.cgroups import CgroupDriver, CgroupTree, cgroup_host
from kubelet_trio.config import (
    PROCESS,
    KubeletConfiguration,
    KubeletFlags,
    Settings,
    reservations,
)
from kubelet_trio.containers import (
    NodeSettings,
)
from kubelet_trio.credentials import (
    Accounts,
    NodeKeyring,
)
from kubelet_trio.daemon.settings import (
    agent_settings,
    keeps_cgroups,
    node_api_settings,
    node_settings,
)
from kubelet_trio.host import Denied
from kubelet_trio.managers import ManagerSettings, load_claims, load_managers
from kubelet_trio.model import (
    NANO,
    Meter,
    PodUid,
    Purpose,
    open_watcher,
    pod_uid,
    thread_offload,
)
from kubelet_trio.node import (
    Machine,
    NodeCapacity,
    Reservations,
    node_capacity,
    read_machine,
)
from kubelet_trio.pleg import PidfdExitWaiter
from kubelet_trio.pods import PodRecord, wanted_pods
from kubelet_trio.pressure import KMSG, open_memory_events
from kubelet_trio.probes import ProcOrphans
from kubelet_trio.runtimes import make_runtime
from kubelet_trio.server import (
    SERVING,
    SOCKET_NAME,
    Port,
    Router,
    add_debug,
    add_exec,
    add_history,
    add_images,
    add_login,
    add_node,
    add_page,
    add_plan,
    add_record,
    add_restart,
    add_stats,
    add_topology,
    add_volumes,
    add_why,
    control_router,
    health_router,
    serve_http,
)
from kubelet_trio.sources import FileSource, Source
from kubelet_trio.supervision import ChildSpec
from kubelet_trio.volumes import KernelMounter, has_tmpfs_noswap

if TYPE_CHECKING:
    from kubelet_trio.agent import ApiServer
    from kubelet_trio.daemon.join import Apis
    from kubelet_trio.server import PageSessions
    from kubelet_trio.sources import Takeover
    from kubelet_trio.tracing import Tracing


def build_agent(
    settings: Settings,
    records: Mapping[PodUid, PodRecord],
    apis: Apis | None = None,
    looked_up: Sequence[str] = (),
    machine_tasks: tuple[ChildSpec, ...] = (),
    takeover: Takeover | None = None,
    denied: Denied = Denied(),  # noqa: B008  # frozen
) -> Agent:
    """Build the agent of a configuration.

    Args:
        settings: the configuration and flags.
        records: the pods' records of an earlier agent.
        apis: the clients of the API server of `--kubeconfig`; None: a standalone node.
        looked_up: the addresses of the node's name (`look_up`).
        machine_tasks: tasks that keep the machine as configured (`machine_children`).
        takeover: what another kubelet has left, and what was adopted of it; None: nothing.
        denied: what a user namespace forbids, and is not tried.

    Raises OSError or ValueError if a file of the host cannot be read or parsed; the text names it.
    """
    machine = read_machine(Path(settings.flags.root_dir))
    reserved, capacity = _resources(settings, machine)
    node = node_settings(settings, machine, capacity, looked_up)
    last_good = wanted_pods(records)
    if takeover is not None:
        from kubelet_trio.sources import as_derived

        last_good = [as_derived(pod, takeover.adopted) for pod in last_good]
    seams = replace(
        _host_seams(settings, node, denied),
        sources=_sources(
            settings.config,
            node,
            last_good,
            local_claims=apis is None
            and settings.config.feature_gates.get("DynamicResourceAllocation", True),
        ),
        takeover=takeover,
        machine=machine_tasks,
        cluster=_api_server(settings, node, capacity, apis),
        meter=apis.meter if apis is not None else Meter(),
    )
    seams = replace(seams, tracing=_tracing(settings.config, node.node_name, seams))
    told = agent_settings(settings, node, capacity, reserved, denied)
    return make_agent(
        told,
        replace(seams, keyring=_keyring(settings.flags, node.root_dir, seams.meter)),
        records,
        lambda agent: _health_servers(agent, settings.config, settings.flags),
        load_managers(
            _runnable(told.managers, settings.config),
            node.root_dir,
            # Processes of the host get no device files from an agent.
            device_plugins=settings.config.container_runtime_endpoint != PROCESS,
        ),
        load_claims(node.root_dir) if told.managers.claims else None,
    )


def _tracing(config: KubeletConfiguration, node_name: str, seams: Seams) -> Tracing | None:
    """Return what traces the agent, if it is configured. Raises ValueError if it cannot."""
    if config.tracing is None:
        return None
    from kubelet_trio import __version__
    from kubelet_trio.tracing import TracingConfig, make_tracing  # with the SDK, an extra

    asked = config.tracing
    told = TracingConfig(node_name, asked.endpoint, asked.sampling_rate_per_million, __version__)
    return make_tracing(told, seams.clock, seams.meter)


def _runnable(managers: ManagerSettings, config: KubeletConfiguration) -> ManagerSettings:
    """Return the managers' settings. Raises ValueError if the runtime cannot follow them."""
    if config.container_runtime_endpoint == PROCESS and (
        managers.gives_cpus or managers.gives_memory
    ):
        raise ValueError(
            "cpuManagerPolicy static and memoryManagerPolicy Static need a container runtime: "
            f"containers of the runtime {PROCESS!r} have no cpuset"
        )
    return managers


def _host_seams(settings: Settings, node: NodeSettings, denied: Denied) -> Seams:
    """Return the seams to this machine."""
    config, flags, host = settings.config, settings.flags, cgroup_host()
    seam = make_runtime(
        config.container_runtime_endpoint,
        node.root_dir,
        image_endpoint=config.image_service_endpoint,
        request_timeout=config.runtime_request_timeout,
        stream_lists=config.feature_gates.get("CRIListStreaming", False),
        allow_root=flags.process_allow_root,
    )

    def cgroups(driver: CgroupDriver) -> CgroupTree:
        units = None
        if driver == "systemd":
            from kubelet_trio.cgroups import SystemdBus  # here: the other driver has no D-Bus

            units = SystemdBus(host.version)
        threads = thread_offload.of(Purpose.CGROUPS)
        return CgroupTree(host, driver, threads, config.cgroup_root, units)

    return Seams(
        runtime=seam.runtime,
        connection=seam.connection,
        mounter=KernelMounter(),
        cgroups=cgroups,
        # None: the runtime makes the cgroups of pods.
        cgroup_tree=cgroups if keeps_cgroups(config) else None,
        sources=(),
        exit_waiter=PidfdExitWaiter(),
        exec_orphans=ProcOrphans(thread_offload.of(Purpose.PROCESSES)),
        kernel_log=None if denied.kernel_log else KMSG,
        memory_events=lambda: open_memory_events(host),
        plugin_watcher=open_watcher,
        node_api=node_api_settings(settings),
        memory_allocatable=node.allocatable["memory"] // NANO,
        tmpfs_noswap=has_tmpfs_noswap(),
    )


def _resources(settings: Settings, machine: Machine) -> tuple[Reservations, NodeCapacity]:
    config, flags = settings.config, settings.flags
    reserved = reservations(
        config,
        machine.online,
        ignore_eviction=flags.experimental_allocatable_ignore_eviction,
    )
    capacity = node_capacity(
        machine,
        reserved,
        max_pods=config.max_pods,
        pods_per_core=config.pods_per_core,
        local_storage=config.local_storage_capacity_isolation,
    )
    return reserved, capacity


def _api_server(
    settings: Settings, node: NodeSettings, capacity: NodeCapacity, apis: Apis | None
) -> ApiServer | None:
    if apis is None:
        return None
    from kubelet_trio.daemon.join import make_api_server

    return make_api_server(settings, node, capacity, apis)


def _keyring(
    flags: KubeletFlags, root_dir: Path, meter: Meter
) -> Callable[[Accounts | None], NodeKeyring]:
    """Return the function that opens the node's credentials for registries.

    Raises OSError and ValueError, naming the file.
    """
    config, programs = (
        flags.image_credential_provider_config,
        flags.image_credential_provider_bin_dir,
    )
    if bool(config) != bool(programs):
        raise ValueError(
            "--image-credential-provider-config and --image-credential-provider-bin-dir "
            "go together: set both"
        )
    files = thread_offload.of(Purpose.PULLS)
    if not config:
        return lambda _accounts: NodeKeyring(root_dir, files)
    # Here: most nodes have no providers.
    from kubelet_trio.credentials import load_providers, make_plugins, providers_hash

    providers = load_providers(Path(config))
    meter.set("kubelet_credential_provider_config_info", 1, (providers_hash(Path(config)),))

    def open_keyring(accounts: Accounts | None) -> NodeKeyring:
        plugins = make_plugins(providers, Path(programs), meter, accounts)
        return NodeKeyring(root_dir, files, plugins)

    return open_keyring


def _sources(
    config: KubeletConfiguration,
    node: NodeSettings,
    last_good: list[Pod],
    *,
    local_claims: bool,
) -> tuple[Source, ...]:
    sources: list[Source] = []
    if config.static_pod_path:
        sources.append(
            FileSource(
                Path(config.static_pod_path),
                node.node_name,
                interval=config.file_check_frequency,
                # The pods of manifests that are invalid now keep running from these.
                last_good=last_good,
                local_claims=local_claims,
            )
        )
    if config.static_pod_url:
        from kubelet_trio.sources import HttpSource  # here: few nodes have one

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
                known=[pod_uid(pod) for pod in last_good],
                local_claims=local_claims,
            )
        )
    return tuple(sources)


def _health_servers(
    agent: Agent, config: KubeletConfiguration, flags: KubeletFlags
) -> tuple[ChildSpec, ...]:
    root_dir = agent.settings.node.root_dir
    sessions = None
    if flags.ui_actions:
        from kubelet_trio.server import PageSessions  # only where the page has actions

        sessions = PageSessions()
    control = agent.ports.unix("control", "--root-dir", root_dir / SOCKET_NAME)
    serve = partial(_serve_control, agent, control, sessions)
    servers = [ChildSpec("control", serve, policy=SERVING, note=control.problem)]
    if config.healthz_port:
        health = agent.ports.tcp(
            "healthz", "healthzPort", config.healthz_bind_address, config.healthz_port
        )
        serve = partial(_serve_health, agent, health)
        servers.insert(0, ChildSpec("healthz", serve, policy=SERVING, note=health.problem))
    # The page shows logs without authentication, so it is off by default, and on loopback only.
    if flags.ui_port:
        servers.append(node_page_child(agent, flags.ui_port, sessions))
    return tuple(servers)


async def _serve_health(
    agent: Agent, port: Port, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    listeners = await port.listen(task_status.started)
    await serve_http(health_router(agent.check_functions(), agent.meter), listeners)


def control_api(agent: Agent, sessions: PageSessions | None = None) -> Router:
    """Return the routes of the control socket; `sessions`: those who may act on the page."""
    router = control_router(agent)
    add_why(router, agent, agent.why)
    add_stats(router, partial(agent.stats.summary, only_cpu_and_memory=True))
    add_volumes(router, agent.volume_page.page)
    add_topology(router, agent.topology_page.page)
    add_history(router, agent.history.page)
    add_node(router, agent.node_object_page.page)
    add_images(router, agent)
    add_page(router, partial(node_page, agent))
    add_exec(router, agent)
    add_restart(router, agent, agent.restart)
    add_debug(router, agent, agent.debug)
    add_plan(router, agent.plan)
    add_record(router, agent.flush_recording)
    add_login(router, sessions.new_login if sessions is not None else None)
    return router


async def _serve_control(
    agent: Agent,
    port: Port,
    sessions: PageSessions | None,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    router = control_api(agent, sessions)
    listeners = await port.listen(task_status.started)
    path = agent.settings.node.root_dir / SOCKET_NAME
    try:
        await serve_http(router, listeners)
    finally:
        # unix(7): a socket's file stays after the socket is closed.
        path.unlink(missing_ok=True)
