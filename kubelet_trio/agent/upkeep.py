"""Builds the parts that protect the node: garbage collection, eviction, OOM, shutdown."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kubelet_trio.agent.parts import PodParts, Reports, RuntimeParts, Setup, Supplies, Upkeep
from kubelet_trio.agent.pods import CollectablePods, GuardedPods
from kubelet_trio.cgroups import cgroup_host, cgroup_path, parse_cgroup, qos_cgroup
from kubelet_trio.containers import NodeSettings, memory_capacity
from kubelet_trio.gc import RECLAIM_ERRORS, ContainerCollector, ImageCollector, LogRotation
from kubelet_trio.model import Purpose
from kubelet_trio.pods import LeftVolumes, NodeCgroups, OrphanCgroups, OrphanDirectories
from kubelet_trio.pressure import (
    ContainerOomWatcher,
    EvictionInputs,
    EvictionManager,
    KernelMemoryWake,
    NodeSignals,
    NoEvictionNotes,
    OomWatcher,
    Reclaim,
    UsageReader,
    file_system_layout,
)
from kubelet_trio.supervision import ChildSpec, DynamicSupervisor

if TYPE_CHECKING:
    from kubelet_trio.shutdown import NodeShutdown


def make_upkeep(
    setup: Setup, runtime: RuntimeParts, reports: Reports, supplies: Supplies, pods: PodParts
) -> Upkeep:
    """Build the parts that remove or terminate pods to protect the node."""
    collectable = CollectablePods(pods.registry, runtime.pleg, pods.desired.value)
    guarded = GuardedPods(pods.registry, runtime.pleg, reports.statuses.pods)
    containers = _make_container_gc(setup, runtime, reports, collectable)
    images = _make_image_gc(setup, runtime, reports, supplies, collectable)
    reclaim = Reclaim(
        # As DeleteAllUnusedContainers of the Go kubelet, which ignores the policy.
        containers=lambda: containers.collect(all_unused=True),
        images=images.remove_unused,
        errors=RECLAIM_ERRORS,
    )
    eviction = _make_eviction(setup, runtime, reports, guarded, reclaim)
    shutdown = _make_shutdown(setup, reports, guarded)
    return Upkeep(
        containers,
        images,
        eviction,
        shutdown,
        pressure_children=(
            ChildSpec("eviction", eviction.run),
            ChildSpec("storage-limits", eviction.run_limits),
            *_oom_children(setup, reports, guarded),
            *((ChildSpec("shutdown", shutdown.run),) if shutdown is not None else ()),
        ),
        gc_children=(
            ChildSpec("containers", containers.run),
            ChildSpec("images", images.run),
            *_orphan_children(runtime, supplies, pods),
            *_log_children(setup, runtime, collectable),
        ),
    )


def _make_container_gc(
    setup: Setup, runtime: RuntimeParts, reports: Reports, pods: CollectablePods
) -> ContainerCollector:
    settings, seams = setup.settings, setup.seams
    node = settings.node
    return ContainerCollector(
        runtime.runtime,
        pods,
        node,
        settings.container_gc,
        events=reports.events,
        clock=seams.clock,
        offload=seams.offload_for(Purpose.GARBAGE),
        relist_soon=runtime.pleg.relist_soon,
        # Agents embedded in programs may share a directory of logs.
        clears_logs=not settings.instance or node.root_dir in node.pod_logs_dir.parents,
    )


def _make_image_gc(
    setup: Setup,
    runtime: RuntimeParts,
    reports: Reports,
    supplies: Supplies,
    pods: CollectablePods,
) -> ImageCollector:
    settings, seams, access = setup.settings, setup.seams, supplies.access
    return ImageCollector(
        runtime.runtime,
        pods,
        settings.image_gc,
        settings.node.node_name,
        reports.events,
        seams.offload_for(Purpose.GARBAGE),
        sandbox_image=settings.sandbox_image,
        space=seams.disk_space,
        prune=access.prune if access is not None else None,
        clock=seams.clock,
    )


def _log_children(
    setup: Setup, runtime: RuntimeParts, pods: CollectablePods
) -> Iterator[ChildSpec]:
    policy, seams = setup.settings.log_rotation, setup.seams
    # A negative containerLogMaxSize turns rotation off (container_log_manager.go).
    if policy.max_size >= 0:
        threads = seams.offload_for(Purpose.GARBAGE)
        rotation = LogRotation(
            runtime.runtime, pods.running_logs, policy, seams.clock, threads, seams.meter
        )
        yield ChildSpec("logs", rotation.run)


def _orphan_children(
    runtime: RuntimeParts, supplies: Supplies, pods: PodParts
) -> Iterator[ChildSpec | DynamicSupervisor]:
    services = supplies.services
    yield ChildSpec("pod-dirs", OrphanDirectories(services, pods.registry).run)
    yield ChildSpec("left-volumes", LeftVolumes(services, pods.registry).run)
    yield services.remains.tasks
    if isinstance(supplies.cgroups, NodeCgroups):
        orphans = OrphanCgroups(
            supplies.cgroups,
            pods.registry,
            runtime.pleg.wait_synced,
            services.volumes.pods_on_disk,
        )
        yield ChildSpec("pod-cgroups", orphans.run)


def _make_eviction(
    setup: Setup, runtime: RuntimeParts, reports: Reports, pods: GuardedPods, reclaim: Reclaim
) -> EvictionManager:
    settings, seams, host = setup.settings, setup.seams, cgroup_host()

    # Evaluated at each use: the runtime may name another cgroup driver later.
    def pods_cgroup() -> str:
        return _pods_cgroup(runtime.node())

    inputs = seams.eviction or _eviction_inputs(setup, runtime, NodeSignals(host, pods_cgroup))
    is_woken = settings.eviction.kernel_notification and seams.eviction is None
    return EvictionManager(
        policy=settings.eviction,
        signals=inputs.signals,
        usage=inputs.usages,
        layout=inputs.layout,
        notes=inputs.notes,
        period=inputs.period,
        pods=pods,
        reclaim=reclaim,
        runtime=runtime.runtime,
        node_name=settings.node.node_name,
        root_dir=str(settings.node.root_dir),
        events=reports.events,
        offload=seams.offload_for(Purpose.SIGNALS),
        # Threads of their own: a hung file system must not delay the signals of memory.
        disk_offload=seams.offload_for(Purpose.FILE_SYSTEMS),
        wake=KernelMemoryWake(host, memory_capacity, pods_cgroup) if is_woken else None,
        pressure=setup.links.pressure,
        meter=seams.meter,
    )


def _eviction_inputs(setup: Setup, runtime: RuntimeParts, own: NodeSignals) -> EvictionInputs:
    """Return what eviction observes of this machine."""
    seams, taps = setup.seams, setup.taps
    threads = seams.offload_for(Purpose.USAGE)
    return EvictionInputs(
        seams.signals or own,
        UsageReader(
            *(runtime.runtime, runtime.node, own, threads),
            runs=lambda uid: any(runtime.pleg.get(uid).running()),
        ),
        file_system_layout,
        taps.evictions if taps is not None else NoEvictionNotes(),
    )


def _pods_cgroup(node: NodeSettings) -> str:
    """Return the cgroup of all pods; "" if there is none."""
    if not node.cgroups_per_qos:
        return ""
    return cgroup_path(qos_cgroup("Guaranteed", parse_cgroup(node.cgroup_root)), node.cgroup_driver)


def _oom_children(setup: Setup, reports: Reports, pods: GuardedPods) -> Iterator[ChildSpec]:
    """Yield the watchers of processes that the kernel kills for memory."""
    seams, events, name = setup.seams, reports.events, setup.settings.node.node_name
    logged = OomWatcher(name, events, pods.container_ref, seams.kernel_log)
    yield ChildSpec("oom", logged.run)
    counted = ContainerOomWatcher(
        events,
        pods.running_containers,
        pods.statuses,
        logged.logged,
        seams.offload_for(Purpose.PROCESSES),
        seams.memory_events,
        # An earlier agent has reported the OOM kills from before this time.
        since=seams.clock.time(),
    )
    yield ChildSpec("memory-events", counted.run)


def _make_shutdown(setup: Setup, reports: Reports, pods: GuardedPods) -> NodeShutdown | None:
    """Return the child `shutdown`; None if no grace period is configured."""
    settings, seams, cluster = setup.settings, setup.seams, setup.cluster
    if not settings.shutdown:
        return None
    from kubelet_trio.shutdown import NodeShutdown, SystemLogind  # here: D-Bus, for a few nodes

    logind = seams.logind or SystemLogind()
    return NodeShutdown(
        periods=settings.shutdown,
        logind=setup.taps.logind(logind) if setup.taps is not None else logind,
        pods=pods,
        node_name=settings.node.node_name,
        root_dir=settings.node.root_dir,
        events=reports.events,
        clock=seams.clock,
        offload=seams.offload_for(Purpose.RECORDS),
        is_shutting_down=setup.links.is_shutting_down,
        announce=cluster.node_changed.ring if cluster is not None else lambda: None,
        reported=cluster.wait_reported if cluster is not None else None,
    )
