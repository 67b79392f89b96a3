"""The wiring of what protects the node: eviction, and what it asks of the pods."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from lightkube.models.core_v1 import Pod
from trio_util import AsyncValue

from kubelet_trio.agent.garbage import Garbage
from kubelet_trio.agent.settings import AgentSettings, Seams
from kubelet_trio.cgroups import cgroup_host, cgroup_path, parse_cgroup, qos_cgroup
from kubelet_trio.containers import NodeSettings, memory_capacity
from kubelet_trio.gc import RECLAIM_ERRORS
from kubelet_trio.model import (
    AnnotatedEventSink,
    ContainerId,
    ContainerState,
    EventSink,
    ObjectRef,
    PodUid,
    Purpose,
    RuntimePod,
    pod_containers,
    pod_ref,
)
from kubelet_trio.pleg import Pleg
from kubelet_trio.pods import (
    EndReason,
    PodFailure,
    PodRegistry,
    PodStage,
    Rejected,
    TerminationRequest,
)
from kubelet_trio.pressure import (
    ContainerOomWatcher,
    EvictionManager,
    KernelMemoryWake,
    NodeSignals,
    OomWatcher,
    Reclaim,
    RunningContainer,
    UsageReader,
)
from kubelet_trio.shutdown import NodeShutdown, SystemLogind
from kubelet_trio.supervision import ChildSpec

_SHUT_DOWN = PodFailure("Terminated", "Pod was terminated in response to imminent node shutdown.")


@dataclass(frozen=True, slots=True)
class GuardedPods:
    """`pressure.EvictablePods`, answered by registry, PLEG and status store."""

    registry: Callable[[], PodRegistry]
    pleg: Pleg
    statuses: AsyncValue[Mapping[PodUid, Pod]]

    def running(self) -> Sequence[tuple[PodUid, Pod]]:
        return [
            (uid, worker.pod)
            for uid, worker in self.registry().workers.items()
            if worker.is_wanted and not worker.is_ending and any(self.pleg.get(uid).running())
        ]

    def running_containers(self) -> Iterator[RunningContainer]:
        """Yield what runs, with what an event of it refers to."""
        for pod in self.pleg.cache.pods():
            for one in pod.containers:
                if one.state is ContainerState.RUNNING:
                    ref = self._ref(pod, one.name)
                    yield RunningContainer(one.id, one.pid, one.started_at, ref)

    def container_ref(self, container_id: ContainerId) -> ObjectRef | None:
        """Return what an event of a container refers to; None if it is not one of ours."""
        for pod in self.pleg.cache.pods():
            for container in pod.containers:
                if container.id == container_id:
                    return self._ref(pod, container.name)
        return None

    def _ref(self, pod: RuntimePod, container: str) -> ObjectRef:
        known = self.statuses.value.get(pod.uid)
        named = pod_containers(known) if known is not None else ()
        path = next((c.field_path for c in named if c.spec.name == container), "")
        return pod_ref(pod.namespace, pod.name, pod.uid, path or f"spec.containers{{{container}}}")

    def active(self) -> Sequence[tuple[PodUid, Pod]]:
        workers = self.registry().workers
        return [(uid, w.pod) for uid, w in workers.items() if w.stage is not PodStage.TERMINATED]

    def shut_down(self, uid: PodUid, grace_period: int) -> None:
        self.end(uid, EndReason.SHUTDOWN, grace_period, _SHUT_DOWN)

    def evict(self, uid: PodUid, grace_period: int, message: str) -> None:
        self.end(uid, EndReason.EVICTED, grace_period, PodFailure("Evicted", message))

    def end(self, uid: PodUid, reason: EndReason, grace_period: int, failure: PodFailure) -> None:
        """Record that a pod is ended; one that is gone already is."""
        worker = self.registry().workers.get(uid)
        if worker is not None:
            worker.request(TerminationRequest(uid, reason, grace_period, failure))

    async def wait_ended(self, uid: PodUid) -> None:
        await self.statuses.wait_value(lambda _pods: self._is_over(uid))

    def _is_over(self, uid: PodUid) -> bool:
        registry = self.registry()
        return uid not in registry.workers or registry.has_ended(uid)


@dataclass(frozen=True, slots=True)
class Guards:
    """The guards of one agent; `shutdown` where the node's shutdown is waited for."""

    eviction: EvictionManager
    oom: OomWatcher
    memory_events: ContainerOomWatcher
    shutdown: NodeShutdown | None = None

    def under_pressure(self, pod: Pod, _others: Sequence[Pod]) -> Rejected | None:
        """Return why a pod may not come while the node is short of something."""
        rejection = self.eviction.rejection(pod)
        return Rejected(*rejection) if rejection is not None else None

    def in_shutdown(self, _pod: Pod, _others: Sequence[Pod]) -> Rejected | None:
        """Return why no pod may come while the node goes down."""
        rejection = self.shutdown.rejection() if self.shutdown is not None else None
        return Rejected(*rejection) if rejection is not None else None

    def children(self) -> tuple[ChildSpec, ...]:
        shutdown = (ChildSpec("shutdown", self.shutdown.run),) if self.shutdown else ()
        return (
            ChildSpec("eviction", self.eviction.run),
            ChildSpec("storage-limits", self.eviction.run_limits),
            ChildSpec("oom", self.oom.run),
            ChildSpec("memory-events", self.memory_events.run),
            *shutdown,
        )

    def not_ready(self) -> str | None:
        """Return why the node is not ready, if one of the guards says so."""
        return self.shutdown.problem() if self.shutdown is not None else None


def make_guards(
    settings: AgentSettings,
    seams: Seams,
    pods: GuardedPods,
    garbage: Garbage,
    events: AnnotatedEventSink,
    node: Callable[[], NodeSettings],
) -> Guards:
    """Build the guards; `node` is the node as it is now, with its runtime's cgroup driver."""
    policy = settings.eviction
    host = cgroup_host()

    def pods_cgroup() -> str:
        return _pods_cgroup(node())

    own_signals = NodeSignals(host, pods_cgroup)
    eviction = EvictionManager(
        policy=policy,
        signals=seams.signals or own_signals,
        usage=UsageReader(seams.runtime, node, own_signals, seams.offload_for(Purpose.USAGE)),
        pods=pods,
        reclaim=Reclaim(
            containers=lambda: garbage.containers.collect(all_unused=True),
            images=garbage.images.remove_unused,
            errors=RECLAIM_ERRORS,
        ),
        runtime=seams.runtime,
        node_name=settings.node.node_name,
        root_dir=str(settings.node.root_dir),
        events=events,
        offload=seams.offload_for(Purpose.SIGNALS),
        disk_offload=seams.offload_for(Purpose.FILE_SYSTEMS),
        wake=KernelMemoryWake(host, memory_capacity, pods_cgroup)
        if policy.kernel_notification
        else None,
        meter=seams.meter,
    )
    oom = OomWatcher(settings.node.node_name, events, pods.container_ref, seams.kernel_log)
    counted = ContainerOomWatcher(
        events,
        pods.running_containers,
        pods.statuses,
        oom.logged,
        seams.offload_for(Purpose.PROCESSES),
        seams.memory_events,
        since=seams.clock.time(),
    )
    return Guards(eviction, oom, counted, _make_shutdown(settings, seams, pods, events))


def _make_shutdown(
    settings: AgentSettings, seams: Seams, pods: GuardedPods, events: EventSink
) -> NodeShutdown | None:
    if not settings.shutdown:
        return None
    cluster = seams.cluster
    return NodeShutdown(
        periods=settings.shutdown,
        logind=seams.logind or SystemLogind(),
        pods=pods,
        node_name=settings.node.node_name,
        root_dir=settings.node.root_dir,
        events=events,
        clock=seams.clock,
        offload=seams.offload_for(Purpose.RECORDS),
        announce=cluster.node_changed if cluster is not None else lambda: None,
        reported=cluster.wait_reported if cluster is not None else None,
    )


def _pods_cgroup(node: NodeSettings) -> str:
    """Return the cgroup of all pods; "" where there is none."""
    if not node.cgroups_per_qos:
        return ""
    return cgroup_path(qos_cgroup("Guaranteed", parse_cgroup(node.cgroup_root)), node.cgroup_driver)
