"""The node's pods for garbage collection, eviction, OOM watchers and node shutdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from lightkube.models.core_v1 import Pod
from trio_util import AsyncValue

from kubelet_trio.gc import RunningLog
from kubelet_trio.model import (
    ContainerId,
    ContainerState,
    ObjectRef,
    PodUid,
    RuntimePod,
    pod_containers,
    pod_ref,
    pod_uid,
)
from kubelet_trio.pleg import Pleg
from kubelet_trio.pods import (
    EndReason,
    PodFailure,
    PodRegistry,
    PodStage,
    PodWorker,
    TerminationRequest,
)
from kubelet_trio.pressure import RunningContainer
from kubelet_trio.sources import Desired

# Reason and message of pkg/kubelet/nodeshutdown.
_SHUT_DOWN = PodFailure("Terminated", "Pod was terminated in response to imminent node shutdown.")


@dataclass(frozen=True, slots=True)
class CollectablePods:
    """Implements `gc.NodePods`."""

    registry: PodRegistry
    pleg: Pleg
    desired: AsyncValue[Desired]

    async def wait_listed(self) -> None:
        await self.pleg.wait_synced()

    async def wait_known(self) -> None:
        await self.pleg.wait_synced()
        await self.registry.wait_complete()

    def are_known(self) -> bool:
        return self.registry.is_complete

    def observed(self) -> Sequence[RuntimePod]:
        return list(self.pleg.cache.pods())

    def is_owned(self, uid: PodUid) -> bool:
        return self.registry.is_owned(uid)

    def has_ended(self, uid: PodUid) -> bool:
        return self.registry.has_ended(uid)

    def wanted(self) -> Iterable[Pod]:
        """Return the pods that may start containers, with their newest manifests."""
        # A list: callers await in the loop over it, and workers come and go meanwhile.
        return list(self._wanted())

    def _wanted(self) -> Iterator[Pod]:
        for uid, pod in self.desired.value.pods.items():
            if not self.has_ended(uid):
                yield pod
        # No source wants these any more, but they use their images until they have terminated.
        for uid, worker in self.registry.workers.items():
            if uid not in self.desired.value.pods and pod_uid(worker.pod) == uid:
                yield worker.pod

    def reclaiming(self, uid: PodUid) -> AbstractContextManager[bool]:
        return self.registry.reclaiming(uid)

    def adopt(self, uid: PodUid) -> None:
        self.registry.adopt(uid)

    def running_logs(self) -> Iterator[RunningLog]:
        """Yield the running containers, as last observed, with their logs."""
        for uid in self.pleg.known_uids:
            pod = self.pleg.get(uid)
            key = pod.namespace, pod.name, uid
            for container in pod.containers:
                if container.state is ContainerState.RUNNING:
                    yield RunningLog(container.id, container.log_path, container.name, key)


@dataclass(frozen=True, slots=True)
class GuardedPods:
    """Implements `pressure.EvictablePods` and `shutdown.ShutdownPods`; serves the OOM watchers."""

    registry: PodRegistry
    pleg: Pleg
    statuses: AsyncValue[Mapping[PodUid, Pod]]

    # Eviction and shutdown

    def running(self) -> Sequence[tuple[PodUid, Pod]]:
        workers = self.registry.workers
        return [(uid, w.pod) for uid, w in workers.items() if w.is_wanted and self._holds(uid, w)]

    def _holds(self, uid: PodUid, worker: PodWorker) -> bool:
        """Whether an eviction of the pod would free anything, or free it sooner."""
        seen = self.pleg.get(uid)
        if not worker.is_ending:
            return worker.is_admitted and seen.exists
        # As in filterOutInactivePods also those that are being deleted: they may have hours to end,
        # which an eviction cuts short. Not those that were evicted: nothing ends them sooner.
        return worker.is_only_deleted and any(seen.running())

    def active(self) -> Sequence[tuple[PodUid, Pod]]:
        workers = self.registry.workers
        return [(uid, w.pod) for uid, w in workers.items() if w.stage is not PodStage.TERMINATED]

    def shut_down(self, uid: PodUid, grace_period: int) -> None:
        self._end(TerminationRequest(uid, EndReason.SHUTDOWN, grace_period, _SHUT_DOWN))

    def evict(
        self, uid: PodUid, grace_period: int, message: str, *, is_over_limit: bool = False
    ) -> None:
        failure = PodFailure("Evicted", message)
        request = TerminationRequest(uid, EndReason.EVICTED, grace_period, failure)
        self._end(replace(request, is_over_limit=is_over_limit))

    def _end(self, request: TerminationRequest) -> None:
        worker = self.registry.workers.get(request.uid)
        if worker is not None:  # None: the pod has terminated already
            worker.request(request)

    async def wait_ended(self, uid: PodUid) -> None:
        await self.statuses.wait_value(lambda _pods: self._is_over(uid))

    def _is_over(self, uid: PodUid) -> bool:
        return uid not in self.registry.workers or self.registry.has_ended(uid)

    # OOM watchers

    def running_containers(self) -> Iterator[RunningContainer]:
        """Yield the running containers, each with the reference that its events need."""
        for pod in self.pleg.cache.pods():
            for one in pod.containers:
                if one.state is ContainerState.RUNNING:
                    ref = self._ref(pod, one.name)
                    yield RunningContainer(one.id, one.pid, one.started_at, ref)

    def container_ref(self, container_id: ContainerId) -> ObjectRef | None:
        """Return the reference for a container's events; None if it is not this agent's."""
        for pod in self.pleg.cache.pods():
            for container in pod.containers:
                if container.id == container_id:
                    return self._ref(pod, container.name)
        return None

    def _ref(self, pod: RuntimePod, container: str) -> ObjectRef:
        known = self.statuses.value.get(pod.uid)
        named = pod_containers(known) if known is not None else ()
        # Without a manifest nothing shows whether it is an init container.
        path = next((c.field_path for c in named if c.spec.name == container), "")
        return pod_ref(pod.namespace, pod.name, pod.uid, path or f"spec.containers{{{container}}}")
