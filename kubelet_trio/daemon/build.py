"""The real side of every seam: containerd over gRPC, the kernel, the sockets that others read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import trio
from lightkube.models.core_v1 import Pod

from kubelet_trio.agent import (
    Agent,
    Seams,
    node_api_settings,
    node_page_child,
)
from kubelet_trio.cgroups import CgroupDriver, CgroupTree, SystemdBus, cgroup_host
from kubelet_trio.config import (
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
    load_providers,
    make_plugins,
)
from kubelet_trio.daemon.settings import agent_settings, keeps_cgroups, node_settings
from kubelet_trio.model import (
    NANO,
    Meter,
    PodUid,
    Purpose,
    SystemClock,
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
    add_exec,
    add_stats,
    control_router,
    health_router,
    serve_http,
)
from kubelet_trio.sources import FileSource, HttpSource, Source
from kubelet_trio.supervision import ChildSpec
from kubelet_trio.volumes import KernelMounter, has_tmpfs_noswap

if TYPE_CHECKING:
    from kubelet_trio.agent import Apis, Cluster


def build_agent(
    settings: Settings,
    records: Mapping[PodUid, PodRecord],
    apis: Apis | None = None,
    looked_up: Sequence[str] = (),
    machine_tasks: tuple[ChildSpec, ...] = (),
) -> Agent:
    """Make the agent that the configuration asks for.

    `apis` is what `--kubeconfig` names, `looked_up` what the node's name means (`look_up`), and
    `machine_tasks` keep the machine itself (`machine_children`).

    Raises OSError or ValueError, naming it, for what of the host cannot be read or parsed.
    """
    config, flags = settings.config, settings.flags
    machine = read_machine(Path(flags.root_dir))
    reserved, capacity = _resources(settings, machine)
    node = node_settings(settings, machine, capacity, looked_up)
    seam = make_runtime(
        config.container_runtime_endpoint,
        node.root_dir,
        image_endpoint=config.image_service_endpoint,
        request_timeout=config.runtime_request_timeout,
        allow_root=flags.process_allow_root,
    )
    host = cgroup_host()

    def cgroups(driver: CgroupDriver) -> CgroupTree:
        units = SystemdBus(host.version) if driver == "systemd" else None
        threads = thread_offload.of(Purpose.CGROUPS)
        return CgroupTree(host, driver, threads, config.cgroup_root, units)

    cluster = _cluster(settings, node, capacity, apis)
    meter = apis.meter if apis is not None else Meter()
    seams = Seams(
        runtime=seam.runtime,
        connection=seam.connection,
        mounter=KernelMounter(),
        cgroups=cgroups,
        # The process runtime makes what it needs; without QoS cgroups nobody makes any.
        cgroup_tree=cgroups if keeps_cgroups(config) else None,
        sources=(
            *_sources(config, node, wanted_pods(records)),
            *((cluster.source,) if cluster is not None else ()),
        ),
        machine=machine_tasks,
        cluster=cluster,
        exit_waiter=PidfdExitWaiter(),
        exec_orphans=ProcOrphans(thread_offload.of(Purpose.PROCESSES)),
        kernel_log=KMSG,
        memory_events=lambda: open_memory_events(host),
        servers=lambda agent: _servers(agent, config, flags),
        keyring=_keyring(
            flags, node.root_dir, meter, cluster.objects.accounts if cluster is not None else None
        ),
        node_api=node_api_settings(settings),
        memory_allocatable=node.allocatable["memory"] // NANO,
        tmpfs_noswap=has_tmpfs_noswap(),
        meter=meter,
    )
    return Agent(agent_settings(settings, node, capacity, reserved), seams, records)


def _resources(settings: Settings, machine: Machine) -> tuple[Reservations, NodeCapacity]:
    config, flags = settings.config, settings.flags
    reserved = reservations(
        config,
        machine.cpus,
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


def _cluster(
    settings: Settings, node: NodeSettings, capacity: NodeCapacity, apis: Apis | None
) -> Cluster | None:
    if apis is None:
        return None
    from kubelet_trio.agent import make_cluster

    return make_cluster(settings, node, capacity, apis, SystemClock())


def _keyring(
    flags: KubeletFlags, root_dir: Path, meter: Meter, accounts: Accounts | None
) -> NodeKeyring:
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
    plugins = make_plugins(providers, Path(programs), meter, accounts)
    return NodeKeyring(root_dir, thread_offload.of(Purpose.PULLS), plugins)


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
    root_dir = agent.settings.node.root_dir
    control = agent.ports.unix("control", "--root-dir", root_dir / SOCKET_NAME)
    serve = partial(_serve_control, agent, control)
    servers = [ChildSpec("control", serve, policy=SERVING, note=control.problem)]
    if config.healthz_port:
        health = agent.ports.tcp(
            "healthz", "healthzPort", config.healthz_bind_address, config.healthz_port
        )
        serve = partial(_serve_health, agent, health)
        servers.insert(0, ChildSpec("healthz", serve, policy=SERVING, note=health.problem))
    if flags.ui_port:
        servers.append(node_page_child(agent, flags.ui_port))
    return tuple(servers)


async def _serve_health(
    agent: Agent, port: Port, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    listeners = await port.listen(task_status.started)
    await serve_http(health_router(agent.check_functions(), agent.meter), listeners)


def control_api(agent: Agent) -> Router:
    """Return the routes of the control socket."""
    router = control_router(agent)
    add_stats(router, partial(agent.stats.summary, only_cpu_and_memory=True))
    add_exec(router, agent)
    return router


async def _serve_control(
    agent: Agent, port: Port, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    router = control_api(agent)
    listeners = await port.listen(task_status.started)
    path = agent.settings.node.root_dir / SOCKET_NAME
    try:
        await serve_http(router, listeners)
    finally:
        path.unlink(missing_ok=True)
