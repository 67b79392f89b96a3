"""Sync one pod that should run, in rounds: observe, plan, publish, execute.

A round reads everything anew, so a lost wake-up only costs time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

import trio
from lightkube.models.core_v1 import Pod

from kubelet_trio.containers import container_hash
from kubelet_trio.cri import RuntimeCallError
from kubelet_trio.model import (
    NOTHING,
    ContainerId,
    EventType,
    PodUid,
    RuntimePod,
    get_logger,
    next_due,
    pod_containers,
    pod_object_ref,
    pod_uid,
)
from kubelet_trio.pods.plan import (
    PlanInput,
    PodPlan,
    deadline_at,
    deadline_failure,
    plan_pod,
)
from kubelet_trio.pods.services import PodServices
from kubelet_trio.pods.status import resize_failed
from kubelet_trio.pods.steps.certainty import Certainty
from kubelet_trio.pods.steps.concurrency import GracefulScope, run_alongside
from kubelet_trio.pods.steps.errors import PodRejectedError, ResizeFailedError, StepError
from kubelet_trio.pods.steps.executor import FailedStarts, PodExecutor
from kubelet_trio.pods.steps.progress import Progress
from kubelet_trio.pods.steps.resize import OnActuated
from kubelet_trio.pods.steps.stops import ContainerStopper
from kubelet_trio.pods.types import (
    EndReason,
    PodFailure,
    PodResize,
    TerminationRequest,
    WaitingReason,
)
from kubelet_trio.pods.worker.allocation import PodAllocation
from kubelet_trio.pods.worker.holds import RETRY_CAP, Holds, NameTurn, is_paused, jittered
from kubelet_trio.pods.worker.reporter import PodReporter
from kubelet_trio.pods.worker.restarting import instances_to_restart
from kubelet_trio.probes import PodProbes
from kubelet_trio.tracing import current_span, pod_attributes, span
from kubelet_trio.volumes import VolumeError

log = get_logger()

# Seconds until a step that changed nothing is repeated.
_NO_PROGRESS = 1.0
# What the execution of a plan raises.
_STEP_ERRORS = (StepError, PodRejectedError, RuntimeCallError)
_MOMENTS = 12  # in each sync period at which idle workers begin their rounds

# Publishes the status of the pod as observed, with the waiting reasons of a plan.
Publish = Callable[[RuntimePod, PodPlan | None], Awaitable[None]]


class PodSync:
    """Syncs one pod. Its worker is the only caller."""

    def __init__(
        self,
        services: PodServices,
        reporter: PodReporter,
        probes: PodProbes,
        turn: NameTurn,
        stopper: ContainerStopper,
        scope: GracefulScope,
        allocation: PodAllocation,
        certainty: Certainty,
        publish: Publish,
        publish_probes: Callable[[], Awaitable[None]],
        on_actuated: OnActuated,
        progress: Progress,
    ) -> None:
        """Take the worker's parts.

        `scope` is not cancelled while a plan is being executed; `publish_probes` runs meanwhile.
        """
        self._services = services
        self._reporter = reporter
        self._probes = probes
        self._turn = turn
        self._scope = scope
        self._allocation = allocation
        self._certainty = certainty
        self._publish = publish
        self._publish_probes = publish_probes
        self._executor = PodExecutor(
            services, stopper, self._publish_sandbox, on_actuated, progress
        )
        self._progress = progress
        self.holds = Holds(turn.uid)
        self.plan: PodPlan | None = None  # of the last round
        self._last_step: tuple[PodPlan, RuntimePod] | None = None
        self._refresh_at = 0.0  # trio time at which the volumes are due
        self._asked: frozenset[ContainerId] = NOTHING  # to restart
        self._synced: Pod | None = None  # of the last round
        self._told = ""  # the failure that is in the log

    def retry(self) -> None:
        """End the waits after failures: their cause may be gone."""
        self.holds.clear()
        self._last_step = None  # the next step does not count as a repetition

    def restart(self, pod: Pod, name: str, *, is_ending: bool) -> frozenset[ContainerId]:
        """Restart instances in the next round. Raises `RestartRefusedError`."""
        observed = self._services.observer.get(pod_uid(pod))
        found = instances_to_restart(pod, observed, name, is_ending=is_ending)
        self._asked |= found
        self.retry()
        return found

    def refresh_soon(self) -> None:
        """Refresh the volumes in the next round: an object has changed."""
        self._refresh_at = 0.0

    async def run_round(self, pod: Pod) -> float | TerminationRequest:
        """Do one round, in a span.

        Returns the Trio time of the next one if nothing wakes the worker, or the request to end
        the pod if it has finished or its deadline has passed.
        """
        kind = "sync" if pod is self._synced else "create" if self._synced is None else "update"
        self._synced = pod
        with span("syncPod", pod, pod_attributes) as opened:
            opened.set("k8s.pod.update_type", kind)
            result = await self._do_round(pod)
        if self.plan is not None:
            starts = [start.container.spec.name for start in self.plan.start]
            log.debug(
                "pod.synced", update=kind, starts=starts, stops=len(self.plan.stop_containers)
            )
        return result

    async def _do_round(self, pod: Pod) -> float | TerminationRequest:
        services, now = self._services, self._services.clock.time()
        failure = deadline_failure(pod, self._reporter.start_time, now)
        if failure is not None:
            self._event(pod, "Normal", failure.reason, failure.message)
            return TerminationRequest(pod_uid(pod), EndReason.DEADLINE, failure=failure)
        observed = services.observer.get(pod_uid(pod))
        # Read together with `observed`: a refresh during the awaits below may change it.
        is_certain = services.observer.is_certain(pod_uid(pod))
        self._report_trouble(pod)
        self.plan = plan = self._plan(pod, observed, now)
        services.notes.plan(pod_uid(pod), plan)
        if plan.finished and is_certain and not observed.containers and services.is_replaced(pod):
            # It ran, may not run again, and cannot: as upstream, whose admission comes first.
            lost = services.managers.lost(pod)
            if lost is not None:
                return self._reject(pod, PodRejectedError(lost.reason, lost.message))
        await self._refresh_volumes(pod, plan)
        await self._publish(observed, plan)
        if plan.finished:
            return TerminationRequest(pod_uid(pod), EndReason.FINISHED)
        is_held = trio.current_time() < self.holds.pod_until
        if plan.is_noop or is_held or not is_certain or is_paused(services, pod):
            return self._next_round(pod, plan)
        if plan.create_sandbox and not self._turn.is_free():
            return min(self._next_round(pod, plan), trio.current_time() + RETRY_CAP)
        try:
            has_succeeded = await self._execute(pod, plan, observed)
        except PodRejectedError as exc:
            return self._reject(pod, exc)
        if not has_succeeded:
            self._last_step = None
            return trio.current_time()  # the next round holds back what failed, and publishes it
        step = plan, replace(observed, observed_at=0.0)
        repeats, self._last_step = step == self._last_step, step
        # A runtime that reports success but does nothing must not keep us (and it) busy.
        return trio.current_time() + (_NO_PROGRESS if repeats else 0.0)

    def _report_trouble(self, pod: Pod) -> None:
        """Emit an event if the runtime works, but cannot report this pod's state."""
        # As podWorkerLoop of the Go kubelet's pod_workers.go.
        trouble = self._services.observer.refresh_error(pod_uid(pod))
        if trouble and self._services.runtime_state.value.is_usable:
            self._event(pod, "Warning", "FailedSync", f"error determining status: {trouble}")

    def _plan(self, pod: Pod, observed: RuntimePod, now: float) -> PodPlan:
        latest = (observed.latest(c.spec.name) for c in pod_containers(pod))
        newest = {record.id for record in latest if record is not None}
        self._asked = self._asked & newest or NOTHING
        return plan_pod(pod, observed, self.given(pod, observed, now, self._allocation.resize))

    def given(
        self, pod: Pod, observed: RuntimePod, now: float, resize: PodResize | None
    ) -> PlanInput:
        """Return what a plan reads besides the pod and what the runtime reports of it."""
        containers = list(pod_containers(pod))
        return PlanInput(
            now=now,
            crash=self._services.crash_back_off,
            policy=self._services.crash_back_off.policy,
            hashes={c.spec.name: container_hash(c.spec) for c in containers},
            images={c.spec.name: c.spec.image or "" for c in containers},
            started=self._probes.started(observed),
            unhealthy=self._probes.unhealthy(observed),
            pull=self.holds.containers(now),
            ended=self._reporter.reported_ends(pod),
            keep_dead=self._services.dead_kept,
            restarting_all=self._reporter.restarts_all(pod),
            resize=resize,
            # Without an error it is another one than the one that failed.
            resize_is_held=bool(self._allocation.error)
            and trio.current_time() < self.holds.resize_until,
            # One that was ended as asked starts again, whatever its policy says.
            restarting=self._reporter.restarting | self._asked,
            asked=self._asked,
        )

    async def _refresh_volumes(self, pod: Pod, plan: PodPlan) -> None:
        """Refresh the volumes, if that is due and they have been set up."""
        if plan.sandbox_id is None or plan.finished or trio.current_time() < self._refresh_at:
            return
        self._refresh_at = trio.current_time() + self._services.sync_period
        try:
            with span("refreshVolumes"):
                await self._services.volumes.refresh(pod)
        except VolumeError as exc:
            log.warning("pod.refresh_failed", error=str(exc))
            self._event(pod, "Warning", "FailedMount", str(exc))

    async def _publish_sandbox(self, pod: Pod, plan: PodPlan) -> None:
        # While images are pulled: PodReadyToStartContainers reports the sandbox alone (KEP-3085).
        # No status may say before the next round that a container runs whose hook has not ended.
        observed = self._services.observer.get(pod_uid(pod))
        await self._publish(self._executor.shown(observed), plan)

    async def _execute(self, pod: Pod, plan: PodPlan, observed: RuntimePod) -> bool:
        """Execute a plan; return whether all of it succeeded. What failed has to wait.

        Raises `PodRejectedError`.
        """
        is_resized = True
        try:
            with self._certainty.changing(), self._scope.step():
                failed = await self._carry_out(pod, plan, observed)
        except ResizeFailedError as exc:
            self._note_failed_resize(pod, exc)
            failed, is_resized = exc.failed, False
        except StepError as exc:
            if str(exc) != self._told:  # it may fail so every few seconds, for days
                self._told = str(exc)
                log.warning("pod.step_failed", reason=exc.reason, error=exc.message)
            current_span().fail(exc.message)
            self._event(pod, "Warning", exc.reason, exc.message)
            self.holds.hold_pod(WaitingReason(exc.reason, exc.message))
            await self._list_again(pod_uid(pod))
            return False
        finally:
            self._progress.at("")
        self._told = ""
        for name, error in failed.items():
            current_span().fail(f"container {name}: {error}")
        tried = [start.container.spec.name for start in plan.start]
        self.holds.note(tried, failed, self._services.clock.time())
        if failed:
            self._certainty.is_complete = False  # a CreateContainer may take effect late
        return is_resized and not failed

    async def _carry_out(self, pod: Pod, plan: PodPlan, observed: RuntimePod) -> FailedStarts:
        if self._probes.is_empty:
            return await self._executor.execute(pod, plan, observed)
        failed: FailedStarts = {}

        async def execute() -> None:
            failed.update(await self._executor.execute(pod, plan, observed))

        # A stop or a pull may take minutes. Endpoints must not wait for it to learn that another
        # container is no longer ready (SetContainerReadiness of status/status_manager.go).
        await run_alongside(execute, (self._publish_probes,), _STEP_ERRORS)
        return failed

    def _reject(self, pod: Pod, error: PodRejectedError) -> TerminationRequest:
        """Return the request to end a pod that the node cannot run (rejectPod in kubelet.go)."""
        log.warning("pod.rejected", reason=error.reason, error=error.message)
        self._services.meter.count("kubelet_admission_rejections_total", (error.reason,))
        self._event(pod, "Warning", error.reason, error.message)
        failure = PodFailure(error.reason, f"Pod was rejected: {error.message}")
        return TerminationRequest(pod_uid(pod), EndReason.REJECTED, failure=failure)

    def _note_failed_resize(self, pod: Pod, error: ResizeFailedError) -> None:
        log.warning("pod.resize_failed", error=error.message)
        allocation = self._allocation
        generation = allocation.resize.generation if allocation.resize is not None else None
        if allocation.error != error.message:
            allocation.error = error.message
            self._event(pod, *resize_failed(pod, generation, error.message))
        self.holds.hold_resize()

    async def _list_again(self, uid: PodUid) -> None:
        """List the pod after a failed call, whose effect is unknown. The relist is the fallback."""
        try:
            await self._services.observer.refresh(uid, listing=True)
        except RuntimeCallError as exc:
            log.info("pod.refresh_failed", error=str(exc))

    def _next_round(self, pod: Pod, plan: PodPlan) -> float:
        """Return the Trio time of the next round, if nothing wakes the worker before."""
        now, began = self._services.clock.time(), trio.current_time()
        deadline = deadline_at(pod, self._reporter.start_time)
        delays = [t - now for t in (plan.retry_at, deadline) if t is not None]
        held = (self.holds.pod_until, self.holds.resize_until)
        delays += [until - began for until in held]
        period = self._services.sync_period
        # Every 5 s by default, as the runtime's health, and not each at a moment of its own.
        idle = next_due(period / _MOMENTS, after=began + jittered(period, pod_uid(pod)))
        return min([idle, *(began + delay for delay in delays if delay > 0)])

    def _event(self, pod: Pod, type_: EventType, reason: str, message: str) -> None:
        self._services.events.emit(pod_object_ref(pod), type_, reason, message)
