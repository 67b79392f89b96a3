"""Collect the facts that explain a worker's pod. Loaded when somebody asks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import trio
from lightkube.models.core_v1 import Pod

from kubelet_trio.containers import differs
from kubelet_trio.model import ContainerId, pod_uid
from kubelet_trio.pods.plan import PodPlan, begin_resize, deadline_at, effective_grace, plan_pod
from kubelet_trio.pods.reasons import (
    Blocker,
    PodFacts,
    ProbeFacts,
    PullFacts,
    VolumeFacts,
)
from kubelet_trio.pods.services import PodServices
from kubelet_trio.pods.types import PodStage, TerminationRequest
from kubelet_trio.pods.worker.allocation import PodAllocation
from kubelet_trio.pods.worker.holds import NameTurn
from kubelet_trio.pods.worker.phases import STAGES, Phase
from kubelet_trio.pods.worker.reporter import PodReporter
from kubelet_trio.pods.worker.standing import Standing
from kubelet_trio.pods.worker.sync import PodSync
from kubelet_trio.probes import PodProbes


@dataclass(frozen=True, slots=True)
class WorkerParts:
    """The parts of a worker that know something of its pod."""

    services: PodServices
    allocation: PodAllocation
    reporter: PodReporter
    sync: PodSync
    probes: PodProbes
    turn: NameTurn
    standing: Standing
    phase: Phase
    request: TerminationRequest | None
    stopped: Mapping[ContainerId, str]

    def plans(self, after: Pod) -> tuple[PodPlan, PodPlan]:
        """Return what the planner does now, and what it would do with another manifest.

        `after`: with the resources that would be allocated to it. Nothing is changed, and the
        runtime not asked.
        """
        pod, resize = self.allocation.allocated, self.allocation.resize
        observed, now = self.services.observer.get(pod_uid(pod)), self.services.clock.time()
        given = self.sync.given(pod, observed, now, resize)
        if differs(pod, after):
            resize = begin_resize(pod, after, observed, resize)
        then = self.sync.given(after, observed, now, resize)
        return plan_pod(pod, observed, given), plan_pod(after, observed, then)

    def facts(self) -> PodFacts:
        """Return what the worker knows and has decided. Never blocks."""
        phase, request = self.phase, self.request
        services, pod, standing = self.services, self.allocation.desired, self.standing
        uid, now = pod_uid(pod), services.clock.time()
        observed = services.observer.get(uid)
        runtime = services.runtime_state.value
        stage, is_running = STAGES[phase], phase is Phase.SYNCING
        problem = "" if runtime.is_usable else runtime.problem or "it is not ready"
        return PodFacts(
            now=now,
            pod=pod,
            activity=phase.value,
            since=standing.moved_at,
            stage=stage,
            observed=observed,
            status=self.reporter.status,
            plan=self.sync.plan if is_running else None,
            doing=standing.progress.steps,
            next_round=_unix(standing.round_due, now),
            hold=self.sync.holds.pod(now) if is_running else None,
            resize_hold=_unix(self.sync.holds.resize_until or None, now),
            runtime_problem=problem or services.observer.problem(trio.current_time()) or "",
            network_problem=runtime.network_problem,
            uncertain=self._uncertain(),
            waits_for=tuple(Blocker(other) for other in self._namesakes(phase)),
            is_admitted=self.reporter.is_admitted,
            admission=self._admission(phase),
            pending=self.allocation.pending,
            resize_error=self.allocation.error,
            volumes=tuple(self._volumes(now)) if stage is PodStage.SYNC else (),
            pulls=tuple(
                PullFacts(p.container, p.image, p.since, p.is_queued)
                for p in services.images.pulls
                if p.uid == uid
            ),
            probes=tuple(self._probes()) if is_running else (),
            request=request,
            grace_end=_grace_end(self, request),
            teardown=standing.teardown,
            remains=standing.remains,
            record_problem=self.reporter.problem,
            deadline=deadline_at(pod, self.reporter.start_time),
            stopped=self.stopped,
        )

    def _uncertain(self) -> str:
        observer, uid = self.services.observer, pod_uid(self.allocation.desired)
        if observer.is_certain(uid):
            return ""
        return observer.refresh_error(uid) or "the runtime has not been listed yet"

    def _namesakes(self, phase: Phase) -> Iterator[str]:
        """Yield the pods that have its name, as far as it waits for it."""
        if phase not in (Phase.WAITING_NAME, Phase.SYNCING):
            return
        key, uid = self.turn.key, self.turn.uid
        holder = self.services.names.holder(key)
        if holder is not None and holder != uid:
            yield holder
        plan = self.sync.plan
        if plan is not None and plan.create_sandbox:
            yield from sorted(self.turn.waits_for - {holder})

    def _admission(self, phase: Phase) -> str:
        if phase is Phase.LISTING:
            return "the runtime has not listed its sandboxes and containers yet"
        if phase is not Phase.WAITING_ADMISSION:
            return ""
        if not self.reporter.is_admitted:
            return "it is not admitted yet: it waits until other pods have ended"
        if not self.services.managers.is_settled(self.allocation.allocated):
            return "it is admitted: what the managers reserve for it is not on disk yet"
        return ""

    def _volumes(self, now: float) -> Iterator[VolumeFacts]:
        current = trio.current_time()
        for wait in self.services.volumes.waits(pod_uid(self.allocation.desired)):
            ahead = wait.retry_at - current
            retry_at = now + ahead if ahead > 0 else None
            yield VolumeFacts(wait.name, now - (current - wait.since), wait.error, retry_at)

    def _probes(self) -> Iterator[ProbeFacts]:
        observed = self.services.observer.get(pod_uid(self.allocation.desired))
        for runner, state, probe in self.probes.current(observed):
            is_same = runner.state is not None and runner.state.container_id == state.container_id
            yield ProbeFacts(
                container=runner.container,
                kind=runner.kind.value,
                result=state.result.value,
                last=state.last.value,
                row=state.row,
                threshold=probe.failureThreshold or 3,
                output=runner.said if is_same and state.row else "",
                at=(runner.said_at or None) if is_same and state.row else None,
                period=probe.periodSeconds or 10,
            )


def _unix(at: float | None, now: float) -> float | None:
    """Return a trio time as Unix seconds; `now` is the same moment as `trio.current_time()`."""
    return None if at is None else now + at - trio.current_time()


def _grace_end(parts: WorkerParts, request: TerminationRequest | None) -> float | None:
    if request is None:
        return None
    return request.requested_at + effective_grace(parts.allocation.desired, request)
