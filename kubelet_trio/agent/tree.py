"""The supervision tree of an agent: see `supervision.md`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import trio
from lightkube.models.core_v1 import Pod

from kubelet_trio.agent.parts import Parts
from kubelet_trio.agent.settings import TOP_POLICY
from kubelet_trio.agent.volume_sizes import VolumeSizes
from kubelet_trio.model import ContainerState, PodUid, RuntimePod
from kubelet_trio.pods import NodeCgroups, PodStage
from kubelet_trio.server import SERVING, Ports
from kubelet_trio.supervision import (
    ChildSpec,
    DynamicSupervisor,
    Supervisor,
)


def make_tree(
    parts: Parts,
    ports: Ports,
    health_servers: Sequence[ChildSpec],
    servers: Sequence[ChildSpec],
) -> Supervisor:
    """Return the root. Its children start in this order, and stop in reverse.

    Args:
        parts: the agent.
        ports: the addresses that it serves on.
        health_servers: the children of `health`.
        servers: the children of `server`; without any there is no `server`.
    """
    seams, reports, cluster = parts.setup.seams, parts.reports, parts.setup.cluster
    return Supervisor(
        "kubelet",
        [
            Supervisor("health", health_servers, policy=TOP_POLICY),
            # Ends after all that it takes notes of; like what only shows, it never ends the agent.
            *_recorder(parts),
            # Before the pods, so that they end after them and deliver the workers' last reports.
            ChildSpec("events", reports.events.run, policy=TOP_POLICY),
            ChildSpec("status", reports.statuses.run, policy=TOP_POLICY),
            *((Supervisor("machine", seams.machine, policy=TOP_POLICY),) if seams.machine else ()),
            *((cluster.api_children(),) if cluster is not None else ()),
            # After `api`, which sends the last statuses once the workers have ended.
            _runtime(parts),
            *_cgroups(parts),
            # Before the pods: their volumes need drivers until the last worker has ended.
            *_plugins(parts, ports),
            *_managers(parts),
            *_claims(parts),
            parts.pods.supervisor,
            parts.pods.sources,
            *_cluster_node(parts),
            Supervisor("pressure", parts.upkeep.pressure_children, policy=TOP_POLICY),
            Supervisor("gc", parts.upkeep.gc_children, policy=TOP_POLICY),
            ChildSpec("stats", parts.stats.run, policy=TOP_POLICY),
            # What only shows the node never ends the agent: it is restarted for ever.
            ChildSpec("history", parts.history.run, policy=SERVING),
            ChildSpec("volume-sizes", _volume_sizes(parts).run, policy=TOP_POLICY),
            # Last, so that it ends first: no request may meet parts that have ended.
            *((Supervisor("server", servers, policy=TOP_POLICY),) if servers else ()),
        ],
    )


def _recorder(parts: Parts) -> tuple[ChildSpec, ...]:
    taps = parts.setup.taps
    return (ChildSpec("recorder", taps.recorder.run, policy=SERVING),) if taps is not None else ()


def _volume_sizes(parts: Parts) -> VolumeSizes:
    pleg, statuses = parts.runtime.pleg, parts.reports.statuses

    def running() -> dict[PodUid, Pod]:
        return {
            uid: pod
            for uid, pod in statuses.pods.value.items()
            if uid in parts.workers
            and any(c.state is ContainerState.RUNNING for c in pleg.get(uid).containers)
        }

    return VolumeSizes(
        parts.supplies.services.volumes,
        running,
        lambda uid: uid in parts.workers,
        parts.setup.settings.sync_period,
    )


def _runtime(parts: Parts) -> Supervisor:
    runtime, connection = parts.runtime, parts.setup.seams.connection
    return Supervisor(
        "runtime",
        [
            *((connection,) if connection is not None else ()),
            # Before its callers: a call in flight outlives them (see `cri.calls`).
            runtime.calls,
            ChildSpec("health", runtime.health.run),
            ChildSpec("pleg", runtime.pleg.run),
            ChildSpec("pod-cidr", runtime.pod_cidr.run),
        ],
        policy=TOP_POLICY,
    )


def _cgroups(parts: Parts) -> tuple[ChildSpec, ...]:
    """Return `cgroups`, which runs before the pods; empty if the runtime makes the cgroups."""
    cgroups = parts.supplies.cgroups
    if not isinstance(cgroups, NodeCgroups):
        return ()
    return (ChildSpec("cgroups", cgroups.run, policy=TOP_POLICY),)


def _plugins(parts: Parts, ports: Ports) -> tuple[Supervisor, ...]:
    """Return `plugins`; empty if the agent has none."""
    if parts.plugins is None:
        return ()
    children: list[DynamicSupervisor | ChildSpec] = [*parts.plugins.children()]
    if parts.supplies.devices is not None:
        from kubelet_trio.agent.device_plugins import plugin_children

        children += plugin_children(parts.supplies.devices, ports)
    return (Supervisor("plugins", children, policy=TOP_POLICY),)


def _managers(parts: Parts) -> tuple[Supervisor, ...]:
    """Return `managers`; empty if all their policies are `none`."""
    managers, settings = parts.supplies.managers, parts.setup.settings.managers
    if managers is None:
        return ()
    children = [ChildSpec("checkpoints", managers.keeper.run)]
    if settings.gives_cpus:
        from kubelet_trio.managers import CpusetReconciler

        reconciler = CpusetReconciler(
            managers, parts.runtime.runtime, partial(_active, parts), settings.reconcile_period
        )
        children.append(ChildSpec("reconcile", reconciler.run))
    if parts.supplies.devices is not None:
        children.append(ChildSpec("devices", parts.supplies.devices.run_news))
    return (Supervisor("managers", children, policy=TOP_POLICY),)


def _claims(parts: Parts) -> tuple[DynamicSupervisor, ...]:
    """Return `claims`, which ends after the pods; empty without dynamic resource allocation."""
    claims = parts.supplies.claims
    return (claims.tree(partial(_claiming, parts)),) if claims is not None else ()


def _claiming(parts: Parts) -> frozenset[PodUid] | None:
    """Return the pods that may use claims: all but those that have ended; None: not known yet.

    What runs counts as well: it may be adopted by a worker at any time.
    """
    desired, workers, pleg = parts.pods.desired.value.value, parts.workers, parts.runtime.pleg
    if not desired.all_ready or pleg.relisted_at is None:
        return None
    ended = {uid for uid, w in workers.items() if w.stage is PodStage.TERMINATED}
    running = {uid for uid in pleg.known_uids if any(pleg.get(uid).running())}
    return frozenset((desired.pods.keys() | workers.keys()) - ended | running)


def _active(parts: Parts) -> list[RuntimePod]:
    """Return the pods that may run, as last observed."""
    return [
        parts.runtime.pleg.get(uid)
        for uid, worker in parts.workers.items()
        if worker.is_admitted and worker.stage is not PodStage.TERMINATED
    ]


def _cluster_node(parts: Parts) -> tuple[Supervisor, ...]:
    """Return `node`, `csi-node` and `certificates`; empty on a standalone node."""
    cluster, links, runtime = parts.setup.cluster, parts.setup.links, parts.runtime
    if cluster is None:
        return ()

    devices = parts.supplies.devices

    def pleg_problem() -> str | None:
        return runtime.pleg.problem(trio.current_time())

    observer = cluster.observer(
        runtime.health.state,
        links.pressure,
        (pleg_problem, cluster.volumes.csi_node.problem, links.not_ready),
        runtime.runtime.list_images,
        devices,
    )
    node = cluster.node_children(
        observer,
        parts.reports.events,
        runtime.pleg,
        runtime.pod_cidr,
        reset_extended=devices is None or not devices.is_restored,
    )
    drivers = parts.supplies.csi
    csi = cluster.csi_children(drivers.drivers, drivers.refresh)
    return node, csi, *cluster.certificate_children()
