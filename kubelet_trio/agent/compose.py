"""Builds an agent from its settings and seams: the one place that knows every room.

**The order.** A part takes what it needs in its constructor, so it is built after the parts that
it uses; no attribute is set on a part afterwards. Each step below takes the steps before it:

    cluster     clients of the API server's objects, pods, statuses and events, if there is one
    recorder    takes notes of what passes the seams; the steps below get the tapped ones
    reports     events, statuses, pod start times
    runtime     calls in flight, health, PLEG
    supplies    objects, images, volumes, cgroups, records: what pods are made of
    plugins     the registry of plugins, which hands drivers to the volumes
    pods        admission, the registry of pod workers, the pipeline of desired pods
    upkeep      garbage collection, eviction, OOM watchers, node shutdown: they act on pods
    stats       what is measured for those who ask
    Agent       runs and shows it; its servers and its supervision tree come last

**Links.** Where two parts need each other, one thing that passes between them is built before both
(`parts.Links`): the PLEG wakes pod workers through `changes`, to which the registry subscribes;
admission reads the `pressure` that eviction writes. The rest is a callable: a server takes the
agent that it shows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from lightkube.models.core_v1 import Node

from kubelet_trio.agent.admission import NodeAdmission
from kubelet_trio.agent.core import Agent
from kubelet_trio.agent.desired import DesiredPods
from kubelet_trio.agent.history import AgentHistory
from kubelet_trio.agent.node_api import node_api_children
from kubelet_trio.agent.node_sockets import node_socket_children
from kubelet_trio.agent.parts import (
    Links,
    Parts,
    PodParts,
    Reports,
    RuntimeParts,
    Setup,
    Supplies,
)
from kubelet_trio.agent.settings import TOP_POLICY, AgentSettings, Seams
from kubelet_trio.agent.stats import AgentStats
from kubelet_trio.agent.supplies import make_supplies
from kubelet_trio.agent.upkeep import make_upkeep
from kubelet_trio.agent.volumes import VolumeNames
from kubelet_trio.containers import NodeSettings, owned_by
from kubelet_trio.cri import CallsInFlight, GuardedRuntime, RuntimeHealth, RuntimeState
from kubelet_trio.events import EventRecorder, EventRing
from kubelet_trio.model import PodUid, Purpose
from kubelet_trio.node import PodCidr
from kubelet_trio.pleg import Pleg
from kubelet_trio.plugins import CSI_TYPE, DEVICE_TYPE, DRA_TYPE, PluginHandler, PluginRegistry
from kubelet_trio.pods import Admitter, PodRecord, PodRegistry, report_crash
from kubelet_trio.sources import Source
from kubelet_trio.status import OnChange, PodStarts, StatusStore, no_watches
from kubelet_trio.supervision import (
    ChildSpec,
    DynamicSupervisor,
    Supervisor,
)

if TYPE_CHECKING:
    from kubelet_trio.managers import Claim, ClaimKey, LoadedManagers
    from kubelet_trio.server import PodWatches

# Request timeouts for which a call goes on after its caller was cancelled. RunPodSandbox, the
# longest, has two (remote_runtime.go in cri-client).
_LEFT_CALLS = 2.5


def make_agent(
    settings: AgentSettings,
    seams: Seams,
    records: Mapping[PodUid, PodRecord] | None = None,
    health_servers: Callable[[Agent], tuple[ChildSpec, ...]] = lambda _agent: (),
    managers: LoadedManagers | None = None,
    claims: Mapping[ClaimKey, Claim] | None = None,
) -> Agent:
    """Return an agent, not running yet.

    Args:
        settings: its settings.
        seams: the world.
        records: the pods' records of an earlier agent, as `load_records` found them.
        health_servers: returns the children of `health`, which show the agent.
        managers: the managers with their states, as `load_managers` found them; None: none.
        claims: the resource claims of an earlier agent, as `load_claims` found them.
    """
    records = records or {}
    setup = _make_setup(settings, seams, records, managers, claims)
    seams = setup.seams
    started_at = seams.clock.time()
    reports = _make_reports(setup)
    runtime = _make_runtime(setup)
    supplies = make_supplies(setup, runtime, reports, started_at, records, managers, claims or {})
    plugins = _make_plugins(setup, supplies)
    pods = _make_pods(setup, runtime, reports, supplies, records)
    upkeep = make_upkeep(setup, runtime, reports, supplies, pods)
    names = VolumeNames(supplies.objects)
    stats = AgentStats(
        settings,
        seams,
        runtime.runtime,
        runtime.pleg,
        reports.statuses,
        names,
        reports.events,
        supplies.csi.usage,
    )
    parts = Parts(
        setup,
        started_at,
        reports,
        runtime,
        supplies,
        plugins,
        pods,
        upkeep,
        stats,
        AgentHistory(stats, seams),
        names,
    )
    return Agent(
        parts,
        health_servers,
        lambda agent: (*node_api_children(agent), *node_socket_children(agent)),
    )


def _make_setup(
    settings: AgentSettings,
    seams: Seams,
    records: Mapping[PodUid, PodRecord],
    managers: LoadedManagers | None,
    claims: Mapping[ClaimKey, Claim] | None,
) -> Setup:
    links, taps = Links(), None
    if settings.recorder_size:
        from kubelet_trio.agent.recording import make_taps, recorded_seams

        taps = make_taps(settings, seams, records, managers, claims)
        seams = recorded_seams(seams, taps)
    if seams.cluster is None:
        return Setup(settings, seams, links, None, taps)
    # An HTTP client and all that uses it: memory that a standalone node does not need.
    from kubelet_trio.agent.cluster import Cluster

    cluster = Cluster(seams.cluster, seams.clock, seams.meter, links.changes, links.workers)
    return Setup(settings, seams, links, cluster, taps)


def _make_reports(setup: Setup) -> Reports:
    seams, cluster, name = setup.seams, setup.cluster, setup.settings.node.node_name
    starts = PodStarts(seams.meter, seams.clock)
    watches = _make_watches(setup)
    on_change: OnChange = watches.changed if watches is not None else no_watches
    if setup.taps is not None:
        on_change = setup.taps.on_change(on_change)
    if cluster is None:
        events = EventRecorder(EventRing(name), seams.clock)
        statuses = StatusStore(on_delivered=starts.delivered, on_change=on_change)
        return Reports(events, statuses, starts, watches)
    events = EventRecorder(EventRing(name), seams.clock, forward=cluster.events.put)
    cluster.report_start(events)
    statuses = StatusStore(cluster.statuses, starts.delivered, on_change)
    return Reports(events, statuses, starts, watches)


def _make_watches(setup: Setup) -> PodWatches | None:
    if not setup.settings.sockets.pods_api:
        return None
    from kubelet_trio.server import PodWatches

    return PodWatches(setup.seams.meter)


def _make_runtime(setup: Setup) -> RuntimeParts:
    settings, seams, changes = setup.settings, setup.seams, setup.links.changes
    cluster = setup.cluster
    calls = CallsInFlight(_LEFT_CALLS * settings.request_timeout)
    runtime = GuardedRuntime(seams.runtime, calls, seams.meter)
    pleg = Pleg(
        runtime,
        wake=changes.wake,
        exit_waiter=seams.exit_waiter,
        owns=owned_by(settings.instance),
        meter=seams.meter,
        clock=seams.clock,
        recovered=changes.wake_all,
        is_stopping=runtime.is_stopping,
    )

    def on_change(state: RuntimeState) -> None:
        # What changed while the runtime was away came with no event.
        if state.is_ready:
            pleg.relist_soon()
        changes.wake_all()
        if cluster is not None:
            cluster.node_changed.ring()

    health = RuntimeHealth(runtime, on_change)

    by_driver: dict[str, NodeSettings] = {}  # asked for often

    def node() -> NodeSettings:
        # As the Go kubelet with the gate KubeletCgroupDriverFromCRI: the runtime's driver wins.
        driver = health.state.value.cgroup_driver
        if driver is None:
            return settings.node
        if driver not in by_driver:
            by_driver[driver] = replace(settings.node, cgroup_driver=driver)
        return by_driver[driver]

    pod_cidr = PodCidr(runtime.update_runtime_config, settings.pod_cidr)
    return RuntimeParts(calls, runtime, health, pleg, pod_cidr, node)


def _make_plugins(setup: Setup, supplies: Supplies) -> PluginRegistry | None:
    seams = setup.seams
    if seams.plugin_watcher is None:
        return None

    def handler_of(plugin_type: str) -> PluginHandler | None:
        # The table's module, and gRPC, are imported with the first driver.
        if plugin_type == CSI_TYPE:
            return supplies.csi.table
        if plugin_type == DRA_TYPE:
            return supplies.claims.drivers if supplies.claims is not None else None
        devices = supplies.devices
        return devices.plugins if devices is not None and plugin_type == DEVICE_TYPE else None

    return PluginRegistry(
        setup.settings.node.root_dir / "plugins_registry",
        handler_of,
        open_watcher=seams.plugin_watcher,
        offload=seams.offload_for(Purpose.PLUGINS),
    )


def _static_sources(setup: Setup, runtime: RuntimeParts, reports: Reports) -> tuple[Source, ...]:
    """Return the sources besides the API server, which keep the UIDs of adopted pods."""
    seams, cluster = setup.seams, setup.cluster
    if seams.takeover is None:
        return seams.sources
    from kubelet_trio.sources import Adopter, AdoptingSource

    adopter = Adopter(
        seams.takeover,
        runtime.runtime,
        cluster.server.api if cluster is not None else None,
        reports.events,
        seams.offload_for(Purpose.SOURCES),
    )
    return tuple(AdoptingSource(source, adopter) for source in seams.sources)


def _known_node(setup: Setup) -> Callable[[], Node | None]:
    """Return what reads the node's object, as the API server has it."""
    cluster, taps = setup.cluster, setup.taps
    known: Callable[[], Node | None] = cluster.known_node if cluster is not None else lambda: None
    return known if taps is None else taps.known_node(known)


def _make_pods(
    setup: Setup,
    runtime: RuntimeParts,
    reports: Reports,
    supplies: Supplies,
    records: Mapping[PodUid, PodRecord],
) -> PodParts:
    settings, seams, links, cluster = setup.settings, setup.seams, setup.links, setup.cluster
    admission = NodeAdmission(
        settings.admission,
        runtime.node,
        runtime.health.state,
        _known_node(setup),
        links.pressure,
        links.is_shutting_down,
        settings.managers,
        lambda: supplies.devices.removed if supplies.devices is not None else (),
    )
    supervisor = DynamicSupervisor(
        "pods", on_crash=partial(report_crash, reports.events), policy=TOP_POLICY
    )
    registry = PodRegistry(
        supplies.services,
        records,
        lambda: runtime.pleg.known_uids,
        supervisor.start_child,
        Admitter(
            admission.node,
            admission.first_checks,
            seams.meter,
            admission.last_checks,
            supplies.services.managers,
        ),
        lambda: runtime.pleg.relisted_at is not None,
        links.workers,
    )
    links.changes.subscribe(registry)
    api_source = (cluster.source,) if cluster is not None and cluster.server.has_pods else ()
    desired = DesiredPods(
        # The API server last: of two pods with one UID the first source's runs (`sources.merge`).
        (*_static_sources(setup, runtime, reports), *api_source),
        supplies.documents,
        reports.starts,
        registry,
        reports.events,
        sync_period=settings.sync_period,
        instance=settings.instance,
        want_mirrors=cluster.want_mirrors if cluster is not None else lambda _desired: None,
        note=setup.taps.inputs.desired if setup.taps is not None else lambda _desired: None,
        with_claims=supplies.claims.with_names if supplies.claims is not None else lambda d: d,
    )
    sources = [ChildSpec(f"{s.name}:{s.origin}", s.run) for s in desired.sources]
    merge = ChildSpec("merge", desired.run)
    return PodParts(
        supervisor, registry, desired, Supervisor("sources", [*sources, merge], policy=TOP_POLICY)
    )
