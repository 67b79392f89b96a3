"""Builds the agent of an embedded kubelet.

Only this module imports every room. It is imported when a kubelet is opened: `import
kubelet_trio` stays cheap for programs that never open one.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from kubelet_trio.agent import Agent, AgentSettings, Seams, admission_settings, make_agent
from kubelet_trio.cgroups import CgroupTree, cgroup_host, has_swap_controller
from kubelet_trio.containers import (
    NodeSettings,
    hugepage_sizes,
    is_selinux_on,
    masked_paths,
    memory_capacity,
    read_resolv_conf,
)
from kubelet_trio.embed.config import KubeletConfig
from kubelet_trio.embed.world import World, node_paths
from kubelet_trio.model import PodUid, Purpose, thread_offload
from kubelet_trio.node import host_ips
from kubelet_trio.pleg import PidfdExitWaiter
from kubelet_trio.pods import BackOffPolicy, PodRecord, wanted_pods
from kubelet_trio.probes import ProcOrphans
from kubelet_trio.runtimes import make_runtime
from kubelet_trio.server import (
    SERVING,
    SOCKET_NAME,
    Port,
    add_plan,
    add_record,
    add_why,
    control_router,
    serve_http,
)
from kubelet_trio.sources import FileSource, Source
from kubelet_trio.supervision import ChildSpec
from kubelet_trio.volumes import KernelMounter, has_tmpfs_noswap

if TYPE_CHECKING:
    from kubelet_trio.managers import Claim, ClaimKey, LoadedManagers

_RESOLV_CONF = "/etc/resolv.conf"


def real_world(config: KubeletConfig) -> World:
    """Return the seams for this machine. Blocks.

    Raises OSError or ValueError, naming the file, if the host cannot be read.
    """
    host, threads = cgroup_host(), thread_offload.of(Purpose.CGROUPS)
    # Containers of a program's own runtime need not be processes of this host.
    orphans = None
    if isinstance(config.runtime, str):
        orphans = ProcOrphans(thread_offload.of(Purpose.PROCESSES))
        seam = make_runtime(config.runtime, config.root, allow_root=config.allow_root)
        runtime, connection = seam.runtime, seam.connection
    else:
        runtime, connection = config.runtime, None
    return World(
        runtime=runtime,
        connection=connection,
        node=_node_settings(config),
        mounter=KernelMounter(),
        cgroups=lambda driver: CgroupTree(host, driver, threads, root=config.cgroup_root),
        exit_waiter=PidfdExitWaiter(),
        exec_orphans=orphans,
        tmpfs_noswap=has_tmpfs_noswap(),
    )


def _node_settings(config: KubeletConfig) -> NodeSettings:
    hostname = socket.gethostname()
    host = cgroup_host()
    resolver = _RESOLV_CONF if Path(_RESOLV_CONF).exists() else ""
    node = NodeSettings(
        node_name=hostname,
        hostname=hostname,
        cluster_dns=config.cluster_dns,
        cluster_domain=config.cluster_domain,
        standalone=True,
        resolv_conf=read_resolv_conf(resolver),
        resolver_file=resolver,
        host_ips=host_ips(config.node_ip),
        cgroup_root=config.cgroup_root,
        cgroup_version=host.version,
        memory_capacity=memory_capacity(),
        hugepage_sizes=hugepage_sizes(),
        swap_controller=has_swap_controller(host),
        masked_paths=masked_paths(),
        selinux=is_selinux_on(),
    )
    return node_paths(node, config)


def build_agent(
    config: KubeletConfig,
    world: World,
    own: Source,
    records: dict[PodUid, PodRecord],
    companions: Callable[[Agent], tuple[ChildSpec, ...]],
    managers: LoadedManagers | None = None,
    claims: Mapping[ClaimKey, Claim] | None = None,
) -> Agent:
    """Build an agent.

    Args:
        config: of the kubelet.
        world: the seams to the host.
        own: the source that the program writes.
        records: of the pods from before.
        companions: further children of the agent, started before its sources.
        managers: of CPUs and memory, with their states from before.
        claims: the resource claims from before.
    """
    node = world.node
    sources: list[Source] = [own]
    if config.manifests is not None:
        sources.append(
            FileSource(Path(config.manifests), node.node_name, last_good=wanted_pods(records))
        )
    runtime = config.runtime if isinstance(config.runtime, str) else "(the program's own)"
    return make_agent(
        AgentSettings(
            node,
            runtime_endpoint=runtime,
            sync_period=config.sync_period,
            parallel_pulls=config.parallel_pulls,
            crash_back_off=BackOffPolicy(
                base=config.crash_backoff_base, cap=config.crash_backoff_cap
            ),
            admission=admission_settings(node.node_name),
            managers=config.managers,
            recorder_size=config.flight_recorder_size,
            instance=config.instance_id,
        ),
        Seams(
            runtime=world.runtime,
            connection=world.connection,
            mounter=world.mounter,
            cgroups=world.cgroups,
            sources=tuple(sources),
            exit_waiter=world.exit_waiter,
            exec_orphans=world.exec_orphans,
            clock=world.clock,
            offload=world.offload,
            memory_allocatable=node.memory_capacity,
            tmpfs_noswap=world.tmpfs_noswap,
            plugin_watcher=world.plugin_watcher if config.plugins else None,
        ),
        records,
        lambda agent: (*companions(agent), *_control(agent, config)),
        managers,
        claims,
    )


def _control(agent: Agent, config: KubeletConfig) -> tuple[ChildSpec, ...]:
    if not config.control_socket:
        return ()
    path = agent.settings.node.root_dir / SOCKET_NAME
    port = agent.ports.unix("control", "control_socket", path)
    serve = partial(_serve_control, agent, port)
    return (ChildSpec("control", serve, policy=SERVING, note=port.problem),)


async def _serve_control(
    agent: Agent, port: Port, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    listeners = await port.listen(task_status.started)
    path = agent.settings.node.root_dir / SOCKET_NAME
    try:
        router = control_router(agent)
        add_why(router, agent, agent.why)
        add_plan(router, agent.plan)
        add_record(router, agent.flush_recording)
        await serve_http(router, listeners)
    finally:
        # The next kubelet on this directory, and the commands, must not find a dead socket.
        path.unlink(missing_ok=True)
