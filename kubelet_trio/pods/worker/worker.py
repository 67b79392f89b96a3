"""One pod's life: a task that brings what is into line with what is wanted, then ends it.

    waiting for its name -> sync: plan, execute, observe, again
                         -> terminating: a recorded decision, then the teardown
                         -> terminated: kept while its manifest is there, then removed

The registry writes two cells, the pod and the termination request, and wakes the worker;
everything else is read fresh in each round, so a lost wake-up costs time and nothing else.
A request cancels the sync in progress: it holds nothing that it must leave. The worker's
own cancellation (the agent ends) detaches: nothing is stopped by it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial

import msgspec
import structlog
import trio
from lightkube.models.core_v1 import Pod

from kubelet_trio.containers import container_hash
from kubelet_trio.cri import RuntimeCallError
from kubelet_trio.model import (
    Backoff,
    Bell,
    EventType,
    PodUid,
    RuntimePod,
    get_logger,
    pod_containers,
    pod_key,
    pod_object_ref,
    pod_uid,
)
from kubelet_trio.objects import pod_references
from kubelet_trio.pods.admission.decision import Rejected
from kubelet_trio.pods.admission.declared_features import lacks_for_update
from kubelet_trio.pods.plan.planner import plan_pod
from kubelet_trio.pods.plan.pod_plan import PlanInput, PodPlan
from kubelet_trio.pods.plan.termination import (
    asked_by_api,
    deadline_at,
    deadline_failure,
    merge_requests,
)
from kubelet_trio.pods.records.files import PodFiles
from kubelet_trio.pods.records.record import PodRecord, is_removed
from kubelet_trio.pods.services import PodServices
from kubelet_trio.pods.steps.executor import FailedStarts, PodExecutor, StepError
from kubelet_trio.pods.steps.stops import ContainerStopper
from kubelet_trio.pods.steps.teardown import TEARDOWN_ERRORS, Teardown, tear_down
from kubelet_trio.pods.steps.together import run_beside
from kubelet_trio.pods.types import (
    EndReason,
    PodFailure,
    PodStage,
    TerminationRequest,
)
from kubelet_trio.pods.worker.holds import RETRY_BASE, RETRY_CAP, Holds, jittered
from kubelet_trio.pods.worker.late import tell_when_late
from kubelet_trio.pods.worker.pause import is_paused, tell_trouble
from kubelet_trio.pods.worker.probing import pod_probes
from kubelet_trio.pods.worker.refresh import VolumeRefresh
from kubelet_trio.pods.worker.reporter import PodReporter
from kubelet_trio.pods.worker.stages import StageEvent, next_stage
from kubelet_trio.pods.worker.turn import NameTurn
from kubelet_trio.probes import PodProbes, ProbeKind

log = get_logger()

_SYNC_DURATION = "kubelet_pod_worker_duration_seconds"
_PREEMPTED = PodFailure("Preempting", "Preempted in order to admit critical pod")
# Before a step that changed nothing is done once more, seconds.
_NO_PROGRESS = 1.0


@dataclass(slots=True, eq=False)
class PodWorker:
    """The worker of one pod UID. The methods before `run` are the registry's; none blocks."""

    services: PodServices
    pod: Pod
    record: PodRecord | None = None
    on_end: Callable[[PodUid], None] = lambda _uid: None
    on_room: Callable[[], None] = lambda: None  # others may be admitted now
    is_wanted: bool = True  # its manifest is there
    stage: PodStage = PodStage.SYNC
    _request: TerminationRequest | None = None
    _admitted: trio.Event = field(default_factory=trio.Event)
    _woken: Bell = field(default_factory=Bell)
    _interrupt: trio.CancelScope = field(default_factory=trio.CancelScope)
    _life: trio.CancelScope = field(default_factory=trio.CancelScope)
    _is_busy: bool = False
    _is_leaving: bool = False
    _is_removed: bool = False
    _remains: str = ""  # why dead remains of it stay in the runtime
    _holds: Holds = field(default_factory=Holds)
    _last_step: tuple[PodPlan, RuntimePod] | None = None
    _executor: PodExecutor = field(init=False)
    _reporter: PodReporter = field(init=False)
    _stopper: ContainerStopper = field(init=False)
    _probes: PodProbes = field(init=False)
    _turn: NameTurn = field(init=False)
    _refresh: VolumeRefresh = field(init=False)

    def __post_init__(self) -> None:
        self._reporter = PodReporter(self.services, self.pod, self.record)
        self._refresh = VolumeRefresh(self.services)
        self._turn = NameTurn(self.services, pod_key(self.pod), self.uid)
        self._stopper = ContainerStopper(self.services, self._reporter)
        self._executor = PodExecutor(self.services, self._stopper, self._on_sandbox)
        status = self._reporter.status or self.pod.status
        self._probes = pod_probes(self.services, self.pod, self.wake, status)
        if self.record is not None and self.record.termination is not None:
            self._request = self.record.termination
            # Wanted again or not, what was to be gone is ended first; the registry starts it anew.
            self.is_wanted &= not is_removed(self.record)
        self._heed_api()

    @property
    def uid(self) -> PodUid:
        return pod_uid(self.pod)

    def wake(self) -> None:
        """Something may have changed: look again now."""
        self._woken.ring()

    def retry(self) -> None:
        """What stood in the way may be gone: look again, held back by nothing."""
        self._holds.clear()
        self._last_step = None  # what comes next is no repetition: the world is another
        self.wake()

    def objects_changed(self) -> None:
        """What the pod refers to is another: its volumes shall show it, and starts may succeed."""
        self._refresh.soon()
        self.retry()

    def update(self, pod: Pod) -> None:
        """Take the newest manifest of this UID."""
        if pod is self.pod or pod == self.pod:
            return
        before, self.pod = self.pod, pod
        if lacking := lacks_for_update(before, pod):
            self._event("Warning", "FailedNodeDeclaredFeaturesCheck", lacking)
        if msgspec.structs.replace(before, status=pod.status) == pod:
            self.wake()  # a condition of somebody else's: it may be a readiness gate
        else:
            if self.stage is not PodStage.TERMINATED:
                self.services.objects.hold(self.uid, pod_references(pod))
            self.objects_changed()
        self._heed_api()

    def _heed_api(self) -> None:
        """Take what the API server says of the pod's end as a request like any other."""
        asked = asked_by_api(self.pod)
        if asked is not None:
            self.request(asked)

    def request(self, request: TerminationRequest) -> None:
        """End the pod. Requests merge: the grace period only shrinks, the first reason stays."""
        if not request.requested_at:
            request = replace(request, requested_at=self.services.clock.time())
        merged = request if self._request is None else merge_requests(self._request, request)
        if merged != self._request:
            self._request = merged
            self._reporter.show_ending(self.pod, merged)
            self._reporter.note_decision()
            self._interrupt.cancel()
            self.wake()

    @property
    def is_admitted(self) -> bool:
        """Whether it may run: it was admitted now, or in an earlier life of the agent."""
        return self._reporter.is_admitted

    @property
    def waits_for(self) -> frozenset[PodUid]:
        """The pods of its name, left of an earlier life of the agent, that must be gone first."""
        return self._turn.waits_for

    @property
    def is_ending(self) -> bool:
        return self._request is not None

    @property
    def is_displaced(self) -> bool:
        """Whether it is being ended to make room for another."""
        return self._request is not None and self._request.reason is EndReason.PREEMPTED

    def admit(self) -> None:
        """Let it run."""
        self._reporter.is_admitted = True
        self._admitted.set()

    def reject(self, rejected: Rejected) -> None:
        """Never let it run."""
        self._event("Warning", rejected.reason, rejected.message)
        failure = PodFailure(rejected.reason, f"Pod was rejected: {rejected.message}")
        self.request(TerminationRequest(self.uid, EndReason.REJECTED, failure=failure))

    def displace(self) -> None:
        """End it to make room for a critical pod."""
        if self.is_displaced:
            return
        self._event("Warning", _PREEMPTED.reason, _PREEMPTED.message)
        self.request(TerminationRequest(self.uid, EndReason.PREEMPTED, failure=_PREEMPTED))

    def remove(self, request: TerminationRequest) -> None:
        """The manifest is gone: end the pod and leave nothing of it."""
        self.is_wanted = False
        self._reporter.note_removed()
        self.request(request)
        self.wake()

    def come_back(self, pod: Pod | None) -> None:
        """Its manifest is there again while it is being removed; None: it went once more.

        The registry starts it anew; what is done here is to remember it until then.
        """
        self._reporter.note_return(pod)

    def leave(self) -> None:
        """The agent ends: finish the step in hand and return, with the pod left as it is."""
        self._is_leaving = True
        if not self._is_busy:
            self._life.cancel()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Live the pod's life to its end. After a crash it goes on from where things are."""
        task_status.started()
        names = {"pod": str(pod_key(self.pod)), "uid": self.uid}
        self.services.objects.hold(self.uid, pod_references(self.pod))
        with structlog.contextvars.bound_contextvars(**names), trio.CancelScope() as self._life:
            if self._probes.is_empty:
                await self._live()
                return
            async with trio.open_nursery() as nursery:
                await nursery.start(self._probes.run)
                await self._live()
                nursery.cancel_scope.cancel()

    async def _live(self) -> None:
        await self._reporter.announce(self.pod)
        # Nothing is told of a pod, nor decided for it, before the runtime was asked for it.
        await self._recording(partial(self.services.observer.wait_synced, self.uid))
        self.on_room()  # what the runtime holds is known now: that is what everybody waits for
        await self._wait_turn()
        await self._wait_admission()
        await self._sync_until_asked()
        await self._end()
        if self.is_wanted:
            self.services.statuses.finish(self.uid)
        await self._recording(self._wait_unwanted)
        await self._remove_all()
        self._turn.release()
        if self._remains:
            self.services.remains.leave(pod_key(self.pod), self.uid, self._remains)
        self.on_end(self.uid)

    async def _wait_turn(self) -> None:
        if not self._turn.has_come and self._request is None:
            log.info("pod.waiting_for_name", reason="a pod of the same name is being ended")
        # A pod that is not wanted any more need not wait: nothing of it was started.
        while not self._turn.has_come and self._request is None:
            await self._wait_told(self._turn.wait)

    async def _wait_admission(self) -> None:
        while not self.is_admitted and self._request is None:
            await self._wait_told(self._admitted.wait)
        if self.is_admitted and self._request is None:
            await self._reporter.note_admitted(self.pod)

    async def _wait_told(self, wait: Callable[[], Awaitable[None]]) -> None:
        """Wait until then, or a request to end; a pod that runs is told as it is meanwhile."""
        with trio.CancelScope() as self._interrupt:
            await run_beside(wait, (self._tell_changes,), ())

    # Sync

    async def _sync_until_asked(self) -> None:
        kind = "create"
        while self._request is None:
            with trio.CancelScope() as self._interrupt:
                while self._request is None:
                    began = trio.current_time()
                    delay = await self._sync_once()
                    took = trio.current_time() - began
                    self.services.meter.observe(_SYNC_DURATION, took, (kind,))
                    kind = "sync"
                    with trio.move_on_after(delay):
                        await self._woken.wait_ring()

    async def _sync_once(self) -> float:
        """One round; return the seconds until the next if nothing wakes us."""
        self._woken.clear()
        now = self.services.clock.time()
        failure = deadline_failure(self.pod, self._reporter.start_time, now)
        if failure is not None:
            self._event("Normal", failure.reason, failure.message)
            self.request(TerminationRequest(self.uid, EndReason.DEADLINE, failure=failure))
            return 0.0
        observed = self.services.observer.get(self.uid)
        # Asked along with it: what it says may have been made good by the time we act.
        is_certain = self.services.observer.is_certain(self.uid)
        tell_trouble(self.services, self.pod)
        plan = await self._plan(observed, now)
        await self._refresh.refresh(self.pod, plan)
        await self._publish(observed, plan)
        if plan.finished:
            self.request(TerminationRequest(self.uid, EndReason.FINISHED))
            return 0.0
        is_held = trio.current_time() < self._holds.pod_until
        if plan.is_noop or is_held or not is_certain or is_paused(self.services, self.pod):
            return self._idle_delay(plan)
        if plan.create_sandbox and not self._turn.is_free():
            return min(self._idle_delay(plan), RETRY_CAP)
        if not await self._execute(plan, observed):
            self._last_step = None
            return 0.0  # what failed is held back, and says so at once
        step = plan, replace(observed, observed_at=0.0)
        repeats, self._last_step = step == self._last_step, step
        # A runtime that says yes and does nothing must not keep us (and it) busy.
        return _NO_PROGRESS if repeats else 0.0

    async def _plan(self, observed: RuntimePod, now: float) -> PodPlan:
        containers = list(pod_containers(self.pod))
        attempts: dict[str, int] = {}
        if any(observed.latest(c.spec.name) is None for c in containers):
            files = PodFiles(self.pod, self.services.node())
            attempts = await self.services.offload(files.attempts_logged)
        given = PlanInput(
            now=now,
            crash=self.services.crash_back_off,
            policy=self.services.crash_back_off.policy,
            hashes={c.spec.name: container_hash(c.spec) for c in containers},
            started=self._probes.started(observed),
            unhealthy=self._probes.unhealthy(observed),
            pull=self._holds.containers(now),
            min_attempts=attempts,
            ended=self._reporter.reported_ends(self.pod),
            keep_dead=self.services.dead_kept,
            restarting_all=self._reporter.restarts_all(self.pod),
        )
        return plan_pod(self.pod, observed, given)

    async def _execute(self, plan: PodPlan, observed: RuntimePod) -> bool:
        """Do a step; return whether all of it was done. What was not is held back."""
        try:
            failed = await self._execute_step(plan, observed)
        except StepError as exc:
            log.warning("pod.step_failed", reason=exc.reason, error=exc.message)
            self._event("Warning", exc.reason, exc.message)
            self._holds.hold_pod()
            await self._look_again()
            return False
        tried = [start.container.spec.name for start in plan.start]
        self._holds.note(tried, failed, self.services.clock.time())
        return not failed

    async def _execute_step(self, plan: PodPlan, observed: RuntimePod) -> FailedStarts:
        self._is_busy = True
        try:
            return await self._executor.execute(self.pod, plan, observed)
        finally:
            self._is_busy = False
            if self._is_leaving:
                self._life.cancel()

    async def _look_again(self) -> None:
        """After a failure only a listing tells what exists; without one the relist will."""
        try:
            await self.services.observer.refresh(self.uid, listing=True)
        except RuntimeCallError as exc:
            log.info("pod.refresh_failed", error=str(exc))

    def _idle_delay(self, plan: PodPlan) -> float:
        """Seconds until there may be something to do without anybody telling us."""
        now = self.services.clock.time()
        deadline = deadline_at(self.pod, self._reporter.start_time)
        delays = [t - now for t in (plan.retry_at, deadline) if t is not None]
        delays.append(self._holds.pod_until - trio.current_time())
        delays = [delay for delay in delays if delay > 0]
        return min([jittered(self.services.sync_period), *delays])

    # End

    async def _end(self) -> None:
        """Bring everything that runs to a stop; if nobody wants the pod, it is gone then."""
        if self.stage is PodStage.TERMINATED:
            return  # the worker crashed after it
        self.stage = next_stage(self.stage, StageEvent.END_REQUESTED)
        # Nobody is to be restarted any more; whether it is ready still matters to others.
        self._probes.stop(ProbeKind.LIVENESS, ProbeKind.STARTUP)
        self._is_removed = await self._tear_down_until_done()
        self.stage = next_stage(self.stage, StageEvent.TORN_DOWN)
        self.services.objects.release(self.uid)  # a pod that has ended may be kept for long
        if not self._is_removed:
            await self._publish(self.services.observer.get(self.uid))
        self.on_room()

    async def _wait_unwanted(self) -> None:
        while self.is_wanted:
            self._woken.clear()
            await self._woken.wait_ring()

    async def _remove_all(self) -> None:
        """Leave nothing behind of a pod whose manifest is gone."""
        if not self._is_removed:
            self._is_removed = await self._tear_down_until_done()
        self.services.images.forget(self.uid)
        self.services.crash_back_off.forget(self.uid)
        self.services.statuses.forget(self.uid)
        self.services.objects.release(self.uid)

    async def _tear_down_until_done(self) -> bool:
        """Tear down, however often it takes; return whether the pod was removed entirely."""
        backoff = Backoff(RETRY_BASE / 2, RETRY_CAP)
        while True:
            # A request that shortens the grace period interrupts, and begins anew with less.
            with trio.CancelScope() as self._interrupt:
                remove = not self.is_wanted
                try:
                    await self._tear_down(remove=remove)
                except TEARDOWN_ERRORS as exc:
                    delay = backoff.next_delay()
                    log.warning("pod.teardown_failed", error=str(exc), retry_in=delay)
                    self._event("Warning", "FailedKillPod", f"error killing pod: {exc}")
                else:
                    return remove
                await trio.sleep(delay)

    async def _tear_down(self, *, remove: bool) -> None:
        request = self._request
        assert request is not None
        self._reporter.show_ending(self.pod, request)
        self._remains = ""
        teardown = Teardown(
            *(self.services, self.pod, request, remove),
            stopper=self._stopper,
            recorded=self._reporter.wait_kept,
            stopped=self._on_stopped,
            at_rest=self._at_rest,
            left=self._on_remains,
        )
        late = partial(tell_when_late, self.services, self.pod, request)
        beside = (late,) if self._probes.is_empty else (late, self._tell_changes)
        await self._recording(partial(tear_down, teardown), *beside)

    async def _recording(
        self, step: Callable[[], Awaitable[None]], *beside: Callable[[], Awaitable[None]]
    ) -> None:
        """Do what may take long; what is decided meanwhile of the pod is on disk at once."""
        keep = partial(self._reporter.keep, self.pod, lambda: self._request)
        await run_beside(step, (keep, *beside), TEARDOWN_ERRORS)

    def _at_rest(self) -> None:
        """Nothing of it runs: what is left to do keeps no other of its name."""
        if not self.is_wanted and self._turn.has_come:
            self._turn.release()
            self.on_room()

    def _on_remains(self, trouble: str) -> None:
        self._remains = trouble

    async def _on_stopped(self, observed: RuntimePod) -> None:
        self._probes.stop()
        await self._publish(observed)

    async def _tell_changes(self) -> None:
        """Tell what changes of a pod that waits, or of what is still ready as it is taken down."""
        while True:
            self._woken.clear()
            await self._publish(self.services.observer.get(self.uid))
            await self._woken.wait_ring()

    # What is said of it

    async def _on_sandbox(self, plan: PodPlan) -> None:
        """The sandbox has its network: told before images are pulled (KEP-3085)."""
        await self._publish(self.services.observer.get(self.uid), plan)

    async def _publish(self, observed: RuntimePod, plan: PodPlan | None = None) -> None:
        await self._reporter.publish(
            self.pod,
            observed,
            stage=self.stage,
            request=self._request,
            waiting=plan.waiting if plan is not None else None,
            started=self._probes.started(observed),
            ready=self._probes.ready(observed),
        )
        status = self._reporter.status
        ip = status.podIP if status is not None else None
        self._probes.update(self.pod, observed, ip or "")

    def _event(self, type_: EventType, reason: str, message: str) -> None:
        self.services.events.emit(pod_object_ref(self.pod), type_, reason, message)
