"""The worker of one pod: a task that syncs the pod, then tears it down.

The registry sets the pod and the termination request and wakes the worker. The worker reads
everything else anew in each round, so a lost wake-up only costs time. Its phase decides what it
does (see `phases`); a termination request interrupts that. If the worker is cancelled because the
agent ends, it stops no container.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import structlog
import trio
from lightkube.models.core_v1 import Pod

from kubelet_trio.model import (
    Bell,
    ContainerId,
    EventType,
    PodUid,
    RuntimePod,
    about_pod,
    get_logger,
    pod_key,
    pod_object_ref,
)
from kubelet_trio.objects import pod_references
from kubelet_trio.pods.admission import Rejected
from kubelet_trio.pods.plan import PodPlan, asked_by_api, merge_requests
from kubelet_trio.pods.records.record import PodRecord
from kubelet_trio.pods.services import PodServices
from kubelet_trio.pods.status import resize_operations, resize_refused
from kubelet_trio.pods.steps.certainty import Certainty
from kubelet_trio.pods.steps.concurrency import GracefulScope, run_alongside
from kubelet_trio.pods.steps.stops import ContainerStopper
from kubelet_trio.pods.steps.teardown import (
    TEARDOWN_ERRORS,
    Teardown,
    remove_rest,
    report_when_late,
    tear_down,
)
from kubelet_trio.pods.types import (
    EndReason,
    PendingResize,
    PodFailure,
    PodStage,
    ResizeTrigger,
    TerminationRequest,
)
from kubelet_trio.pods.worker.holds import RETRY_CAP
from kubelet_trio.pods.worker.phases import Phase, PhaseEvent, next_phase
from kubelet_trio.pods.worker.placement import settle
from kubelet_trio.pods.worker.probing import pod_probes
from kubelet_trio.pods.worker.resizing import ResizeLedger
from kubelet_trio.pods.worker.standing import Standing, until_done
from kubelet_trio.pods.worker.state import WorkerState
from kubelet_trio.pods.worker.sync import PodSync
from kubelet_trio.probes import ProbeKind

if TYPE_CHECKING:
    from kubelet_trio.pods.worker.facts import WorkerParts

log = get_logger()

_SYNC_DURATION = "kubelet_pod_worker_duration_seconds"
_PREEMPTED = PodFailure("Preempting", "Preempted in order to admit critical pod")


class PodWorker(WorkerState):
    """Syncs and ends one pod. The registry calls the methods above `run`, which never block."""

    def __init__(
        self,
        services: PodServices,
        pod: Pod,
        record: PodRecord | None,
        *,
        reconsider: Callable[[ResizeTrigger], None],
        on_gone: Callable[[PodUid], None],
        changed: Callable[[PodUid], None],
    ) -> None:
        """Make a worker that `run` starts.

        Args:
            services: the node's services for pods.
            pod: the pod as its source wants it, or as it was last known.
            record: the pod's record, if an earlier agent left one.
            reconsider: called when waiting pods may be admitted, resized, or get their name.
            on_gone: called last, when the pod is gone.
            changed: called when the pod may have to be counted in another way.
        """
        super().__init__(services, pod, record, changed)
        self._services = services
        self._reconsider = reconsider
        self._on_gone = on_gone
        self._bell = Bell()
        self._probed = Bell()  # a probe's result has changed
        self._published: tuple[RuntimePod, PodPlan | None] | None = None  # what was last published
        self._interrupt = trio.CancelScope()  # around the activity of the current phase
        self._scope = GracefulScope()  # around the whole task
        self._certainty = Certainty()
        self._is_new = record is None
        self._standing = Standing(services.clock)
        self._ledger = ResizeLedger(services, self._allocation, self._reporter, reconsider)
        known = self._reporter.status or pod.status
        self._probes = pod_probes(services, pod, self._note_probe, known)
        self._stopper = ContainerStopper(services, self._reporter, self._standing.progress)
        self._sync = PodSync(
            *(services, self._reporter, self._probes, self._turn, self._stopper, self._scope),
            *(self._allocation, self._certainty),
            publish=self._publish,
            publish_probes=self._publish_probes,
            on_actuated=self._ledger.note_actuated,
            progress=self._standing.progress,
        )
        self._take_api_request()

    def parts(self) -> WorkerParts:
        """Return what explains the pod, and says what an edit would do. Never blocks."""
        from kubelet_trio.pods.worker.facts import WorkerParts  # loaded when somebody asks

        own = self._services, self._allocation, self._reporter, self._sync, self._probes
        return WorkerParts(
            *own, self._turn, self._standing, self.phase, self._request, self._stopper.told
        )

    def wake(self) -> None:
        """Start another round: something may have changed."""
        self._bell.ring()

    def retry(self) -> None:
        """Start another round, with failed steps retried: their cause may be gone."""
        self._sync.retry()
        self._services.volumes.retry(self.uid)
        self.wake()

    def objects_changed(self) -> None:
        """Refresh the volumes and retry failed starts: a referenced object has changed."""
        self._sync.refresh_soon()
        self.retry()

    def update(self, pod: Pod) -> None:
        """Take the newest manifest of this UID."""
        before, pod = self._allocation.desired, self._allocation.with_added(pod)
        if pod is before or pod == before:
            return
        self._allocation.update(pod, is_admitted=self.is_admitted, now=trio.current_time())
        for operation in resize_operations(before, pod):
            self._services.meter.count("kubelet_container_requested_resizes_total", operation)
        if msgspec.structs.replace(before, status=pod.status) == pod:
            self.wake()  # only the status: a condition of another writer may be a readiness gate
        else:
            if self.stage is not PodStage.TERMINATED:
                self._services.objects.hold(self.uid, pod_references(pod))
            self.objects_changed()
        if self.stage is PodStage.TERMINATED:  # no round will show it
            self._reporter.show(self.pod, self._request)
        self._take_api_request()

    def _take_api_request(self) -> None:
        """Turn a deletion or a terminal phase at the API server into a termination request."""
        asked = asked_by_api(self.pod)
        if asked is not None:
            self.request(asked)

    def request(self, request: TerminationRequest) -> None:
        """End the pod. Requests merge: the grace period only shrinks, the first reason stays."""
        self._merge(request)
        self._move(PhaseEvent.END_REQUESTED)

    def remove(self, request: TerminationRequest) -> None:
        """End the pod and remove all of it: its manifest is gone."""
        self._reporter.note_removed()
        self._merge(request)
        self._move(PhaseEvent.MANIFEST_GONE)
        self.wake()

    def note_wanted_again(self, pod: Pod | None) -> None:
        """Record that a source wants the pod again during its removal (None: no longer).

        The registry makes a new worker for it once this pod is gone.
        """
        self._reporter.note_return(pod)

    def _merge(self, request: TerminationRequest) -> None:
        if not request.requested_at:
            request = replace(request, requested_at=self._services.clock.time())
        merged = request if self._request is None else merge_requests(self._request, request)
        if merged == self._request:
            return
        self._request = merged
        self._changed()
        self._reporter.show_ending(self.pod, merged)
        self._reporter.note_decision()
        if self.stage is not PodStage.TERMINATED:  # otherwise nothing is left to stop sooner
            self._interrupt.cancel()
        self.wake()

    def _move(self, event: PhaseEvent) -> None:
        after = next_phase(self.phase, event)
        self._standing.moved(self.phase, after)
        self._phase.value = after
        self._changed()
        if event is PhaseEvent.TORN_DOWN:
            # At once: whoever decides next would find the room, and not say where it came from.
            self._reconsider(ResizeTrigger.POD_TERMINATED)

    def admit(self) -> None:
        """Let the pod run."""
        self._reporter.admit()
        self._changed()

    def grant_resize(self) -> None:
        """Allocate the resources that the pod asks for."""
        self._allocation.grant()
        self.wake()

    def refuse_resize(self, why: PendingResize) -> None:
        """Keep the resources that the pod has."""
        was = self._allocation.refuse(why)
        if was is None or (why.reason, why.generation) != (was.reason, was.generation):
            self._event(*resize_refused(self._allocation.desired, why))
        if why != was:
            self.wake()

    def reject(self, rejected: Rejected) -> None:
        """Reject the pod: it never runs."""
        self._event("Warning", rejected.reason, rejected.message)
        failure = PodFailure(rejected.reason, f"Pod was rejected: {rejected.message}")
        self.request(TerminationRequest(self.uid, EndReason.REJECTED, failure=failure))

    def displace(self) -> None:
        """Preempt the pod for a critical one."""
        if self.is_displaced:
            return
        self._event("Warning", _PREEMPTED.reason, _PREEMPTED.message)
        self.request(TerminationRequest(self.uid, EndReason.PREEMPTED, failure=_PREEMPTED))

    def restart(self, name: str) -> frozenset[ContainerId]:
        """Restart a container, "": all; return the instances. Raises `RestartRefusedError`."""
        found = self._sync.restart(self.pod, name, is_ending=self.is_ending)
        self.wake()
        return found

    def leave(self) -> None:
        """Finish the step in progress and return because the agent ends; the pod keeps running."""
        self._scope.cancel()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run until the pod is gone. After a crash, continue in the same phase."""
        task_status.started()
        await self._services.turnstile.enter()
        names = about_pod(self.pod)
        # Before the first round needs them: an object is watched while a pod holds it.
        self._services.objects.hold(self.uid, pod_references(self.pod))
        with structlog.contextvars.bound_contextvars(**names), self._scope.open():
            if self._probes.is_empty:
                await self._live()
                return
            async with trio.open_nursery() as nursery:
                await nursery.start(self._probes.run)
                await self._live()
                nursery.cancel_scope.cancel()  # the probes never return by themselves

    async def _live(self) -> None:
        await self._reporter.announce(self.pod, waits=not self._is_next)
        # Also after a crash, and for a pod that is terminating: both depend on what runs.
        observer = self._services.observer
        if not observer.is_synced(self.uid):  # of an agent that has just begun
            await self._recording(partial(observer.wait_synced, self.uid))
        if self.phase is Phase.LISTING:
            # No call for it was ever made: records are written before the first.
            exists = self._services.observer.get(self.uid).exists
            self._certainty.is_complete = self._is_new and not exists
            self._move(PhaseEvent.LISTED)
        while self.phase is not Phase.GONE:
            await self._services.turnstile.enter()  # all may be asked to end at once
            with trio.CancelScope() as self._interrupt:
                event = await _ACTIVITIES[self.phase](self)
                # A request during a call that cannot be cancelled makes the event outdated.
                if event is not None and not self._interrupt.cancel_called:
                    self._move(event)
        self._forget()

    @property
    def _is_next(self) -> bool:
        """Whether nothing keeps the pod from its first round."""
        is_free = self._turn.is_holder and self._services.managers.is_settled(self.pod)
        return is_free and self.is_admitted and not self.is_ending

    # The activities of the phases. Each returns the event that ends its phase, or None if another
    # event has already ended it.

    async def _wait_name(self) -> PhaseEvent:
        if not self._turn.is_holder:
            log.info("pod.waiting_for_name", reason="a pod of the same name is being ended")
        while not self._turn.is_holder:
            await run_alongside(self._turn.wait, (self._publish_changes,))
        return PhaseEvent.NAME_FREE

    async def _wait_admission(self) -> PhaseEvent | None:
        if not self.is_admitted:
            await run_alongside(self._reporter.wait_admitted, (self._publish_changes,))
        if not self._services.managers.is_settled(self.pod):
            await run_alongside(self._settle, (self._publish_changes,))
        if self.is_ending:
            return None
        return PhaseEvent.ADMITTED

    async def _settle(self) -> None:
        rejected = await settle(self._services, self.pod)
        if rejected is not None:
            self.reject(rejected)

    async def _run_rounds(self) -> None:
        kind = "create"
        while True:
            self._bell.clear()  # before anything is read: a ring during the round asks for another
            began, self._standing.round_due = trio.current_time(), None
            await self._ledger.accept()
            result = await self._sync.run_round(self.pod)
            took = trio.current_time() - began
            self._services.meter.observe(_SYNC_DURATION, took, (kind,))
            kind = "sync"
            if isinstance(result, TerminationRequest):
                self.request(result)
                return
            if self._allocation.granted is not None:
                # The disk refused it, or the pod is uncertain.
                result = min(result, trio.current_time() + RETRY_CAP)
            if self._allocation.pending is not None:
                self._reconsider(ResizeTrigger.PERIODIC)  # for changes of the node that wake nobody
            self._standing.round_ended(result)
            with trio.move_on_at(result):
                await self._bell.wait_ring()
            await self._services.turnstile.enter()

    async def _terminate(self) -> PhaseEvent:
        # No container restarts any more, but a change of readiness still matters to endpoints.
        self._probes.stop(ProbeKind.LIVENESS, ProbeKind.STARTUP)
        return await until_done(self._try_terminate, self._standing, self._event)

    async def _try_terminate(self) -> PhaseEvent:
        removes = self.phase is Phase.DELETING
        try:
            await self._tear_down(tear_down, remove=removes)
        except TEARDOWN_ERRORS:
            self._yield()
            raise
        return PhaseEvent.REMOVED if removes else PhaseEvent.TORN_DOWN

    async def _stay_terminated(self) -> None:
        await self._publish_terminated()
        if self.is_wanted:
            # From here on the API object may be deleted, and its controller may replace the pod.
            self._services.statuses.finish(self.uid)
        await self._recording(self._wait_unwanted)

    async def _wait_unwanted(self) -> None:
        await self._phase.wait_value(lambda phase: phase is not Phase.TERMINATED)

    async def _remove(self) -> PhaseEvent:
        await self._publish_terminated()  # not done yet if it comes from DELETING
        return await until_done(self._try_remove, self._standing, self._event)

    async def _try_remove(self) -> PhaseEvent:
        await self._tear_down(remove_rest, remove=True)
        return PhaseEvent.REMOVED

    def _forget(self) -> None:
        """Drop all that the agent keeps in memory of the pod, which is gone."""
        self._services.images.forget(self.uid)
        self._services.crash_back_off.forget(self.uid)
        self._services.statuses.forget(self.uid)
        self._services.objects.release(self.uid)
        self._turn.release()  # a later pod of the name may start from here on
        if self._standing.remains:
            self._services.remains.leave(pod_key(self.pod), self.uid, self._standing.remains)
        self._on_gone(self.uid)

    # Teardown

    async def _tear_down(
        self, step: Callable[[Teardown], Awaitable[None]], *, remove: bool
    ) -> None:
        request = self._request
        assert request is not None  # every phase that tears down begins with a request
        self._reporter.show_ending(self.pod, request)
        self._standing.leave("")
        observer = self._services.observer
        teardown = Teardown(
            *(self._services, self.pod, request, remove, self._reporter.returns),
            stopper=self._stopper,
            is_known=self._certainty.is_complete and observer.is_certain(self.uid),
            recorded=self._reporter.wait_kept,
            stopped=self._on_stopped,
            at_rest=self._at_rest,
            left=self._standing.leave,
            progress=self._standing.progress,
        )
        # A container may end long before the others, and the pod is no longer ready then.
        tasks = (partial(report_when_late, teardown), self._publish_changes)
        with self._certainty.changing():
            await self._recording(partial(step, teardown), *tasks)

    async def _recording(
        self, step: Callable[[], Awaitable[None]], *tasks: Callable[[], Awaitable[None]]
    ) -> None:
        """Run a step that may take long; write decisions about the pod to disk meanwhile."""
        # A task of its own: a write to a disk that hangs cannot be cancelled.
        keep = partial(self._reporter.keep, self.pod, lambda: self._request)
        await run_alongside(step, (keep, *tasks), TEARDOWN_ERRORS)

    def _at_rest(self) -> None:
        """Release the name of an unwanted pod: nothing of it runs, so the next one may start."""
        self._yield()
        if not self.is_wanted and self._turn.is_holder:
            self._turn.release()
            self._reconsider(ResizeTrigger.POD_TERMINATED)

    def _yield(self) -> None:
        """Let no pod wait for what this one holds, if no source wants it."""
        if not self.is_wanted and not self._yields:
            self._yields = True
            self._changed()
            self._reconsider(ResizeTrigger.PODS_REMOVED)

    async def _on_stopped(self, observed: RuntimePod) -> None:
        self._probes.stop()  # readiness probes too: no container is left to probe
        await self._publish(observed)

    # Status

    async def _publish_terminated(self) -> None:
        self._services.objects.release(self.uid)  # a terminated pod may be kept for long
        await self._publish(self._services.observer.get(self.uid))

    async def _publish_changes(self) -> None:
        """Publish changes of a pod that waits or terminates, such as its readiness."""
        while True:
            self._bell.clear()
            await self._publish(self._services.observer.get(self.uid))
            await self._bell.wait_ring()

    def _note_probe(self) -> None:
        self._probed.ring()
        self.wake()

    async def _publish_probes(self) -> None:
        """Publish what probes find while a step takes long; all else stays as it was told."""
        while True:
            await self._probed.wait_ring()
            if self._published is not None:
                await self._report(*self._published, is_round=False)

    async def _publish(self, observed: RuntimePod, plan: PodPlan | None = None) -> None:
        self._published = observed, plan
        self._probed.clear()
        await self._report(observed, plan, is_round=True)
        status = self._reporter.status
        self._probes.update(self.pod, observed, (status and status.podIP) or "")

    async def _report(self, observed: RuntimePod, plan: PodPlan | None, *, is_round: bool) -> None:
        await self._reporter.publish(
            self.pod,
            observed,
            stage=self.stage,
            request=self._request,
            waiting=plan.waiting if plan is not None else None,
            started=self._probes.started(observed),
            ready=self._probes.ready(observed),
            is_round=is_round,
        )

    def _event(self, type_: EventType, reason: str, message: str) -> None:
        self._services.events.emit(pod_object_ref(self.pod), type_, reason, message)


# Not of each worker: seven bound methods and a dictionary are 800 bytes a pod.
_ACTIVITIES: Mapping[Phase, Callable[[PodWorker], Awaitable[PhaseEvent | None]]] = {
    Phase.WAITING_NAME: PodWorker._wait_name,
    Phase.WAITING_ADMISSION: PodWorker._wait_admission,
    Phase.SYNCING: PodWorker._run_rounds,
    Phase.TERMINATING: PodWorker._terminate,
    Phase.DELETING: PodWorker._terminate,
    Phase.TERMINATED: PodWorker._stay_terminated,
    Phase.REMOVING: PodWorker._remove,
}
