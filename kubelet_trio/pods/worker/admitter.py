"""Admit or reject the pods that wait for it, by the node's current state.

The registry owns the admitter and calls it whenever something has changed. The admitter never
blocks and keeps no state: while a pod waits until the pods that it preempts have ended, each call
decides on it anew from the workers' state. What the other pods hold the ledger has as sums.

`RefusedPods` refuses a pod whose worker cannot be made because of a bug. One task applies the
desired set for all pods, and an exception that one pod causes must not end that task.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from functools import partial

import msgspec
import trio
from lightkube.models.core_v1 import Pod, PodStatus

from kubelet_trio.managers import Refusal
from kubelet_trio.model import (
    ADMISSIONS,
    EventSink,
    Meter,
    PodUid,
    about_pod,
    get_logger,
    pod_key,
    pod_object_ref,
    pod_ref,
    pod_uid,
)
from kubelet_trio.pods.admission.decision import (
    AdmissionNode,
    Admitted,
    Decision,
    Preempting,
    Rejected,
    decide_beside,
)
from kubelet_trio.pods.admission.held import NOTHING, Held
from kubelet_trio.pods.admission.hints import rejection_hints
from kubelet_trio.pods.admission.resize import (
    DEFERRED,
    INFEASIBLE,
    decide_resize,
    decide_resize_beside,
    deferred,
    resize_order,
)
from kubelet_trio.pods.services import NoManagers, PodManagers, PodServices
from kubelet_trio.pods.types import PendingResize, ResizeTrigger
from kubelet_trio.pods.worker.ledger import Ledger
from kubelet_trio.pods.worker.worker import PodWorker
from kubelet_trio.supervision import call_contained

log = get_logger()

# admissionRejectionReasons and recordAdmissionRejection of pkg/kubelet.
_COUNTED = frozenset(
    (
        *("AppArmor", "PodOSSelectorNodeLabelDoesNotMatch", "PodOSNotSupported", "InvalidNodeInfo"),
        *("InitContainerRestartPolicyForbidden", "SupplementalGroupsPolicyNotSupported"),
        *("UnexpectedAdmissionError", "UnknownReason", "UnexpectedPredicateFailureType"),
        *("OutOfcpu", "OutOfmemory", "OutOfephemeral-storage", "OutOfpods"),
        *("PodLevelResourcesNotSupported", "PodFeatureUnsupported", "TaintToleration", "Evicted"),
        *("SysctlForbidden", "TopologyAffinityError", "NodeShutdown"),
        "VolumeAttachmentLimitExceeded",
    )
)

UNEXPECTED = "UnexpectedAdmissionError"
_SHORT = "OutOf"  # how reasons of shortages begin
_DURATION = "kubelet_topology_manager_admission_duration_ms"
_ACCEPTED = "kubelet_pod_deferred_accepted_resizes_total"

# A check of another room: takes a pod and the others on the node, may reject the pod.
AdmissionCheck = Callable[[Pod, Sequence[Pod]], Rejected | None]


class Admitter:
    """Admits or rejects waiting workers, in the order in which they were made."""

    def __init__(
        self,
        node: Callable[[], AdmissionNode],
        checks: Iterable[AdmissionCheck] = (),
        meter: Meter | None = None,
        last_checks: Iterable[AdmissionCheck] = (),
        managers: PodManagers | None = None,
    ) -> None:
        """Make an admitter.

        Args:
            node: returns the node as it is now.
            checks: made first.
            meter: counts rejections and preemptions.
            last_checks: made for pods that nothing else rejects.
            managers: reserve CPUs, memory and devices, for pods that nothing else rejects.
        """
        self._node = node
        self._meter = meter or Meter()
        self._meter.begin(_DURATION, ADMISSIONS)
        self._checks = tuple(checks)
        self._last_checks = tuple(last_checks)
        self._managers: PodManagers = managers or NoManagers()

    def admit(
        self,
        ledger: Ledger,
        workers: Mapping[PodUid, PodWorker],
        *,
        trigger: ResizeTrigger,
        all_known: bool = True,
        resizes: bool = True,
    ) -> None:
        """Decide on every worker that waits for its admission, or asks for other resources.

        Args:
            ledger: what the node's pods hold, which includes pods without a worker.
            workers: all workers of the node.
            trigger: what has changed, for the metric of resizes.
            all_known: whether all pods of the node are known: not before resizes are decided on,
                and what unknown pods hold is released.
            resizes: whether to decide on resizes too: they come after all pods that wait.
        """
        waiting = ledger.waiting()
        resizing = ledger.resizing() if all_known and resizes else []
        if all_known:
            self._managers.retain(ledger.present())
        for uid in ledger.take_unadopted():
            self._adopt(workers[uid].pod)
        if not waiting and not resizing:
            return
        node = self._node()
        try:
            self._admit_waiting([workers[uid] for uid in waiting], workers, ledger, node)
            for worker in sorted([workers[uid] for uid in resizing], key=_resize_order):
                if not worker.is_ending:  # preempted by a pod before it
                    self._resize(worker, workers, ledger, node, trigger)
        finally:
            ledger.end_reservations()

    def would_admit(
        self,
        pod: Pod,
        others: Sequence[Pod],
        leaving: Sequence[Pod] = (),
        replaces: Collection[PodUid] = (),
    ) -> Decision:
        """Return what would be decided on a pod that came now; reserve and change nothing.

        Args:
            pod: the pod.
            others: all that would be on the node beside it.
            leaving: pods that end in any case: it would wait for what they hold.
            replaces: pods that it does not start before the end of.
        """
        decision = self._decided(pod, Held.by(others), self._node(), Held.by(leaving))
        if isinstance(decision, Rejected) and not decision.reason.startswith(_SHORT):
            return decision
        freed = [*replaces]
        if isinstance(decision, Preempting):
            freed += [pod_uid(victim) for victim in decision.victims]
        elif isinstance(decision, Admitted) and decision.waits:
            freed += [pod_uid(each) for each in leaving]
        refusal = call_contained(self._managers.would_refuse, pod, freed)
        if isinstance(refusal, Exception):
            return _undecided(pod, refusal)
        return decision if refusal is None else Rejected(refusal.reason, refusal.message)

    def hints(self, pod: Pod, others: Sequence[Pod]) -> tuple[str, ...]:
        """Return what the rejection of a pod does not name, as of now: see `rejection_hints`."""
        return tuple(rejection_hints(pod, others, self._node()))

    def would_resize(
        self, desired: Pod, allocated: Pod, others: Sequence[Pod], leaving: Sequence[Pod] = ()
    ) -> PendingResize | Preempting | None:
        """Return why a resize would not be granted now; None if it would. Changes nothing."""
        why = call_contained(decide_resize, desired, allocated, others, self._node(), leaving)
        if isinstance(why, Exception):
            return deferred(desired, Rejected(UNEXPECTED, f"{why!r}"))
        return why

    def _admit_waiting(
        self,
        waiting: Sequence[PodWorker],
        workers: Mapping[PodUid, PodWorker],
        ledger: Ledger,
        node: AdmissionNode,
    ) -> None:
        """Decide on the pods that are not admitted; reserve for those that wait for room."""
        for worker in waiting:
            if worker.is_ending:
                continue  # preempted by a pod before it
            with ledger.beside(worker.uid) as (others, leaving):
                decision = self._decided(worker.pod, others, node, leaving)
            decision = self._reserved(worker, decision, ledger)
            if isinstance(decision, Admitted) and not decision.waits:
                worker.admit()
            elif isinstance(decision, Rejected):
                log.warning("pod.rejected", **about_pod(worker.pod), reason=decision.reason)
                reason = counted_reason(decision.reason)
                self._meter.count("kubelet_admission_rejections_total", (reason,))
                worker.reject(decision)
            else:
                ledger.reserve(worker.uid)  # it counts already
                if isinstance(decision, Preempting):
                    self._displace(worker, decision, workers)

    def _reserved(self, worker: PodWorker, decision: Decision, ledger: Ledger) -> Decision:
        """Reserve CPUs, memory and devices for an admitted pod; return the final decision.

        A pod that waits for others to end holds nothing meanwhile.
        """
        if isinstance(decision, Rejected) and not decision.reason.startswith(_SHORT):
            return decision
        made = call_contained(self._reserve, worker, decision, ledger)
        if isinstance(made, Exception):
            return _undecided(worker.pod, made)
        return decision if made is None else Rejected(made.reason, made.message)

    def _reserve(self, worker: PodWorker, decision: Decision, ledger: Ledger) -> Refusal | None:
        pod, key = worker.pod, pod_key(worker.pod)
        refuse = self._managers.would_refuse
        if isinstance(decision, Preempting):
            # A pod that could not have its CPUs even then displaces no other.
            freed = [pod_uid(victim) for victim in decision.victims]
            if refuse(pod, freed) is None:
                return None
            return self._asked(partial(refuse, pod, freed, counts=True))
        if isinstance(decision, Admitted) and decision.waits:
            return None
        # This pod does not start before those of its name have ended (`NameTurn`).
        replaces = [uid for uid in ledger.unwanted(key) if uid != worker.uid]
        if isinstance(decision, Rejected):
            # Upstream asks the managers before it counts what the node has, so a pod that neither
            # admits has the reason of the managers: a device too few is no `OutOfexample.org/gpu`.
            return self._asked(partial(refuse, pod, replaces, counts=True))
        return self._asked(partial(self._managers.admit, pod, replaces))

    def _asked(self, ask: Callable[[], Refusal | None]) -> Refusal | None:
        """Ask the managers about a pod that is decided on for good; count and time it."""
        began = trio.current_time()
        refusal = ask()
        took = 1000 * (trio.current_time() - began)
        self._meter.count("kubelet_topology_manager_admission_requests_total")
        self._meter.observe(_DURATION, took, buckets=ADMISSIONS)
        return refusal

    def _adopt(self, pod: Pod) -> None:
        failure = call_contained(self._managers.adopt, pod)
        if isinstance(failure, Exception):
            log.error("pod.not_adopted", **about_pod(pod), exc_info=failure)

    def _resize(
        self,
        worker: PodWorker,
        workers: Mapping[PodUid, PodWorker],
        ledger: Ledger,
        node: AdmissionNode,
        trigger: ResizeTrigger,
    ) -> None:
        """Grant or refuse a resize."""
        was = worker.allocation.pending
        with ledger.beside(worker.uid) as (others, leaving):
            why = self._resized(worker, others, node, leaving)
        if isinstance(why, Preempting):
            self._displace(worker, why, workers)
            assert why.rejection is not None
            why = deferred(worker.allocation.desired, why.rejection)
        if why is None:
            if was is not None and was.reason == DEFERRED:
                self._meter.count(_ACCEPTED, (trigger.value,))
            log.info("pod.resize_allocated", **about_pod(worker.pod))
            worker.grant_resize()
            return
        if was is None or (why.reason, why.generation) != (was.reason, was.generation):
            log.info("pod.resize_pending", **about_pod(worker.pod), reason=why.reason)
            if why.reason == INFEASIBLE:
                self._meter.count("kubelet_pod_infeasible_resizes_total", (why.detail,))
        worker.refuse_resize(why)

    def _resized(
        self, worker: PodWorker, others: Held, node: AdmissionNode, leaving: Held
    ) -> PendingResize | Preempting | None:
        """Return the decision on a resize; after an exception in it the pod stays as it is."""
        desired, allocated = worker.allocation.desired, worker.allocation.allocated
        why = call_contained(decide_resize_beside, desired, allocated, others, node, leaving)
        if not isinstance(why, Exception):
            return why
        log.error("pod.resize_undecided", **about_pod(worker.pod), exc_info=why)
        text = f"Unexpected error while attempting to resize the pod: {why!r}"
        return deferred(desired, Rejected(UNEXPECTED, text))

    def _decided(
        self, pod: Pod, others: Held, node: AdmissionNode, leaving: Held = NOTHING
    ) -> Decision:
        """Return the decision on a pod; an exception in it rejects that pod alone."""
        decision = call_contained(self._decide, pod, others, node, leaving)
        if not isinstance(decision, Exception):
            return decision
        return _undecided(pod, decision)

    def _decide(self, pod: Pod, others: Held, node: AdmissionNode, leaving: Held) -> Decision:
        for check in self._checks:
            rejected = check(pod, others.pods)
            if rejected is not None:
                return rejected
        decision = decide_beside(pod, others, node, leaving)
        if isinstance(decision, Rejected):
            return decision
        # Now, before other pods are preempted for a pod that these checks reject.
        rejections = (check(pod, others.pods) for check in self._last_checks)
        return next((r for r in rejections if r is not None), decision)

    def _displace(
        self, worker: PodWorker, decision: Preempting, workers: Mapping[PodUid, PodWorker]
    ) -> None:
        for victim in decision.victims:
            found = workers.get(pod_uid(victim))
            if found is not None:
                log.info("pod.preempted", **about_pod(victim), by=str(pod_key(worker.pod)))
                if not found.is_displaced:
                    self._meter.count("kubelet_preemptions", (decision.resource,))
                found.displace()


def _undecided(pod: Pod, failure: Exception) -> Rejected:
    """Return the rejection of a pod because of a bug."""
    log.error("pod.admission_failed", **about_pod(pod), exc_info=failure)
    text = f"Unexpected error while attempting to admit the pod: {failure!r}"
    return Rejected(UNEXPECTED, text)


def _resize_order(worker: PodWorker) -> tuple[bool, int, bool, float]:
    allocation = worker.allocation
    return resize_order(allocation.desired, allocation.allocated, allocation.pending_since)


def counted_reason(reason: str) -> str:
    """Return the metric label of a rejection, one of a bounded number of labels."""
    if reason in _COUNTED:
        return reason
    return "OutOfExtendedResources" if reason.startswith(_SHORT) else "Other"


def report_crash(events: EventSink, name: str, failure: BaseException, restarts: int) -> None:
    """Emit an event about a crash of a pod's worker; `name` is the worker's in the tree."""
    key, _, uid = name.partition("@")
    namespace, _, pod_name = key.partition("/")
    events.emit(
        pod_ref(namespace, pod_name, uid),
        "Warning",
        "FailedSync",
        f"the pod's worker failed and is started again (restart {restarts}): {failure!r}",
    )


class RefusedPods:
    """Keeps the refused pods, and reports them. The registry owns it."""

    def __init__(self, services: PodServices) -> None:
        self._services = services
        self._pods: dict[PodUid, Pod] = {}

    def is_refused(self, pod: Pod) -> bool:
        """Whether this manifest of a pod was refused; an edited one is tried again."""
        return _same(self._pods.get(pod_uid(pod)), pod)

    def refuse(self, pod: Pod, failure: Exception, *, runs: bool) -> None:
        """Report a pod as rejected. `runs`: the runtime still has containers or a sandbox of it."""
        uid = pod_uid(pod)
        self._pods[uid] = pod
        log.error("pod.refused", **about_pod(pod), exc_info=failure)
        message = f"Unexpected error while attempting to admit the pod: {failure!r}"
        self._services.events.emit(pod_object_ref(pod), "Warning", UNEXPECTED, message)
        if runs:
            return
        status = msgspec.structs.replace(
            pod.status or PodStatus(),
            phase="Failed",
            reason=UNEXPECTED,
            message=f"Pod was rejected: {message}",
        )
        self._services.statuses.put(uid, msgspec.structs.replace(pod, status=status))
        self._services.statuses.finish(uid)

    def forget_unwanted(self, wanted: Container[PodUid]) -> None:
        """Drop those that no source wants any more."""
        for uid in [uid for uid in self._pods if uid not in wanted]:
            del self._pods[uid]
            self._services.statuses.forget(uid)


def _same(refused: Pod | None, pod: Pod) -> bool:
    """Whether two states of a pod differ only in their status."""
    if refused is None:
        return False
    plain = (msgspec.structs.replace(p, status=None, metadata=_meta(p)) for p in (refused, pod))
    return next(plain) == next(plain)


def _meta(pod: Pod) -> object:
    """Return the metadata without the fields that every write at the API server changes."""
    meta = pod.metadata
    return meta and msgspec.structs.replace(meta, resourceVersion=None, managedFields=None)
