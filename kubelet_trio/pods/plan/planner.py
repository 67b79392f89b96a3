"""Decide what a pod's next sync does: a pure function of the pod and the runtime's state.

`plan_pod` follows the Go kubelet's computePodActions and doBackOff (1.36). In order:

1. If a container's exit requires it, all containers are removed (`plan_restart_all`).
2. A pod without a usable sandbox gets a new one: everything in the old ones is stopped and
   initialization starts over. If no main container may run in it, the pod is finished.
3. Ephemeral containers start once.
4. Init containers run one after the other; sidecars keep running (`plan_init`).
5. Main containers start, and restart as their policies say, after their back-off.
6. A resize that is allocated is applied: see `resize`. A container that is stopped or started for
   another reason starts with the allocated resources.

It does not cover a terminating pod: see the teardown.

It differs from the Go kubelet where the runtime's answer may be out of date, where a reply may be
lost, and where others may remove a record. Each difference has a comment at its line. They ensure
that two instances of a container never run at the same time, and that a container whose restart
policy is Never does not run twice.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from lightkube.models.core_v1 import Pod

from kubelet_trio.model import (
    ContainerId,
    ContainerKind,
    ContainerRecord,
    ContainerState,
    PodContainer,
    RuntimePod,
    SandboxRecord,
    pod_containers,
    spec,
)
from kubelet_trio.pods.plan.init_containers import InitPlan, plan_init
from kubelet_trio.pods.plan.pod_plan import PlanInput, PodPlan, StartContainer, StopContainer
from kubelet_trio.pods.plan.resize import ResizePod, plan_resize, requires_restart
from kubelet_trio.pods.plan.restarts import (
    plan_restart_all,
    restarts_when_killed,
    should_start,
    stop_as_asked,
    stop_for_resize,
)
from kubelet_trio.pods.plan.sandbox import (
    current_sandbox,
    has_lost_init,
    mains_for_new_sandbox,
    next_attempt,
)
from kubelet_trio.pods.plan.starts import Starts, has_changed
from kubelet_trio.pods.plan.termination import restart_grace
from kubelet_trio.pods.types import Hold, WaitingReason


def plan_pod(pod: Pod, observed: RuntimePod, given: PlanInput) -> PodPlan:
    """Return what to do next for a pod that should run.

    Args:
        pod: the pod, defaulted and validated.
        observed: what the runtime reports of it.
        given: all other inputs.

    Returns:
        The plan. `finished`: every main container has ended and none will start again.
    """
    restart_all = plan_restart_all(pod, observed, given)
    if restart_all is not None:
        return restart_all
    planner = _Planner(pod, observed, given, current_sandbox(pod, observed))
    return planner.plan()


@dataclass(slots=True)
class _Planner:
    """The inputs of one plan, and the actions decided so far."""

    pod: Pod
    observed: RuntimePod
    given: PlanInput
    sandbox: SandboxRecord | None
    stop: dict[ContainerId, StopContainer] = field(default_factory=dict)
    start: list[StartContainer] = field(default_factory=list)
    remove: dict[ContainerId, None] = field(default_factory=dict)
    holds: dict[str, Hold] = field(default_factory=dict)
    retry_at: float | None = None
    goes_on: bool = False  # a main container runs on, or is to start

    def plan(self) -> PodPlan:
        if self.sandbox is None:
            return self._plan_new_sandbox()
        return self._plan_in(self.sandbox)

    # Without a usable sandbox

    def _plan_new_sandbox(self) -> PodPlan:
        """Stop everything in the old sandboxes, and start over in a new one."""
        given = self.given
        mains = mains_for_new_sandbox(self.pod, self.observed, given.ended, given.restarting)
        if not mains:
            return PodPlan(finished=True)
        inits = self._of_kind(ContainerKind.INIT)
        for container in inits[:1] or mains:
            self._start(container)
        self._prune()
        # Upstream's purgeInitContainers: the old records of init containers would make a Go
        # kubelet that takes over the node now believe that the new sandbox is initialized.
        init_names = {c.spec.name for c in inits}
        self.remove |= {c.id: None for c in self.observed.containers if c.name in init_names}
        known = {s.id for s in self.observed.sandboxes}
        for record in self.observed.running():
            if record.sandbox_id not in known:  # no `stop_sandboxes` reaches it
                self._stop(record, f"Stopping container {record.name}")
        return PodPlan(
            stop_containers=tuple(self.stop.values()),
            stop_sandboxes=tuple(s.id for s in self.observed.sandboxes),
            remove_containers=tuple(self.remove),
            create_sandbox=True,
            sandbox_attempt=next_attempt(self.observed),
            resize=ResizePod() if given.resize is not None else None,
            start=tuple(self.start),
            waiting=self._waiting(),
            retry_at=self.retry_at,
            holds=self.holds,
        )

    # In a usable sandbox

    def _plan_in(self, sandbox: SandboxRecord) -> PodPlan:
        for container in self._of_kind(ContainerKind.EPHEMERAL):
            self._plan_ephemeral(container)
        init = plan_init(self.pod, self.observed, sandbox.id, self.given)
        if init.is_done:
            alive = [
                self._plan_main(container, sandbox)
                for container in self._of_kind(ContainerKind.MAIN)
            ]
        else:
            lost = has_lost_init(self.pod, self.observed, self.given.ended)
            alive = [not (init.has_failed or lost)]
        if not any(alive):
            return PodPlan(sandbox_id=sandbox.id, finished=True)
        # While the last main container is stopped for good, no sidecar starts, nor is replaced: the
        # teardown that follows stops sidecars in their order.
        if self.goes_on or not init.is_done:
            self._add_init(init)
        self._stop_strays(sandbox)
        self._prune()
        return PodPlan(
            stop_containers=tuple(self.stop.values()),
            remove_containers=tuple(self.remove),
            sandbox_id=sandbox.id,
            resize=self._plan_resize(),
            start=tuple(self.start),
            waiting=self._waiting(),
            retry_at=self.retry_at,
            holds=self.holds,
        )

    def _add_init(self, init: InitPlan) -> None:
        for stop in init.stop:
            self.stop[stop.id] = stop
        # Sidecars and init containers start before what was decided on main containers.
        mains, self.start = self.start, []
        for container in init.start:
            self._start(container)
        self.start += mains

    def _plan_ephemeral(self, container: PodContainer) -> None:
        """Start it unless it has run: ephemeral containers are never restarted."""
        latest = self.observed.latest(container.spec.name)
        if latest is None:
            is_due = container.spec.name not in self.given.ended
        else:
            is_due = latest.state is ContainerState.CREATED
        if is_due:
            self._start(container)

    def _plan_main(self, container: PodContainer, sandbox: SandboxRecord) -> bool:
        """Decide on one main container; return whether it keeps the pod alive."""
        latest = self.observed.latest(container.spec.name)
        if latest is not None and latest.state is ContainerState.RUNNING:
            self.goes_on |= self._plan_running(container, latest, sandbox)
            # Even if it is killed without a restart, it keeps the pod alive until it has exited:
            # its exit code decides the phase, and nothing runs in a finished pod.
            return True
        if latest is not None and latest.state is ContainerState.UNKNOWN:
            # It may be running. The Go kubelet kills it only if it also starts it again.
            self._stop(latest, 'Container is in "unknown" state, try killing it before restart')
        given = self.given
        is_wanted = should_start(
            self.pod, container.spec, self.observed, given.ended, given.restarting
        )
        if is_wanted:
            self._start(container)
        self.goes_on |= is_wanted
        return is_wanted

    def _plan_running(
        self, container: PodContainer, latest: ContainerRecord, sandbox: SandboxRecord
    ) -> bool:
        """Decide on one that runs; return whether it runs on, or is to start again."""
        name = container.spec.name
        restart = restarts_when_killed(container.spec, spec(self.pod))
        is_changed = has_changed(latest, self.given)
        if is_changed:
            # As upstream, whatever the restart policy says.
            why, restart = "definition changed", True
        elif latest.id in self.given.unhealthy:
            why = self.given.unhealthy[latest.id]
        elif latest.sandbox_id != sandbox.id:
            # Not upstream's rule: the container outlived the sandbox that it was created in.
            why = "runs outside of the pod's sandbox"
        elif requires_restart(self.pod, container.spec, latest, self.given.resize):
            self.stop[latest.id] = stop_for_resize(latest)
            self._start(container)
            return True
        elif latest.id in self.given.asked:
            self.stop[latest.id] = stop_as_asked(latest)
            self._start(container)
            return True
        else:
            return True
        message = f"Container {name} {why}"
        grace = restart_grace(container.spec, why)
        if restart:
            message = f"{message}, will be restarted"
        stop = StopContainer(latest.id, name, message, grace, starts_again=is_changed)
        self.stop[latest.id] = stop
        if restart:
            self._start(container)
        return restart

    def _plan_resize(self) -> ResizePod | None:
        resize = self.given.resize
        # A container must not start above its pod: its start is a reason to try again.
        if resize is None or (self.given.resize_is_held and not self.start):
            return None
        return ResizePod(plan_resize(self.pod, self.observed, resize, self.stop))

    # Actions

    def _of_kind(self, kind: ContainerKind) -> list[PodContainer]:
        return [c for c in pod_containers(self.pod) if c.kind is kind]

    def _waiting(self) -> dict[str, WaitingReason]:
        return {name: hold.waiting for name, hold in self.holds.items()}

    def _stop(self, record: ContainerRecord, message: str, grace: int | None = None) -> None:
        self.stop[record.id] = StopContainer(record.id, record.name, message, grace)

    def _start(self, container: PodContainer) -> None:
        """Start the next instance, or record why it must wait."""
        starts = Starts(self.pod, self.observed, self.given)
        hold = starts.hold(container, self.sandbox)
        if hold is not None:
            self.holds[container.spec.name] = hold
            self.retry_at = min(self.retry_at or hold.until, hold.until)
            return
        latest = self.observed.latest(container.spec.name)
        if latest is not None and latest.state is ContainerState.CREATED:
            # Its StartContainer may still be in flight, and its reply may have been lost.
            # Removing it ends it, so that it cannot run together with the next instance.
            self.remove[latest.id] = None
        self.start.append(starts.start(container, self.sandbox))

    def _stop_strays(self, sandbox: SandboxRecord) -> None:
        """Stop older instances, those of other sandboxes and those whose name left the spec.

        computePodActions looks only at the newest instance of each name in the spec.
        """
        names = {c.spec.name for c in pod_containers(self.pod)}
        for record in self.observed.running():
            is_newest = self.observed.latest(record.name) is record
            if not is_newest or record.name not in names or record.sandbox_id != sandbox.id:
                stop = StopContainer(record.id, record.name, f"Stopping container {record.name}")
                self.stop.setdefault(record.id, stop)

    def _prune(self) -> None:
        """Remove dead instances beyond `keep_dead`, and older ones that never ran."""
        seen: Counter[str] = Counter()
        for record in self.observed.containers:
            is_newest = self.observed.latest(record.name) is record
            if record.state is ContainerState.EXITED:
                keep = self.given.keep_dead
                if keep is not None and seen[record.name] >= keep:
                    self.remove[record.id] = None
                seen[record.name] += 1
            elif record.state is not ContainerState.RUNNING and not is_newest:
                self.remove[record.id] = None
