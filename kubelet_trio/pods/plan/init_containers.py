"""Decide what happens to init containers: which one runs next, which run again.

Ordinary init containers run strictly one after the other, each until it exits with code 0. A
sidecar (restart policy Always) keeps running: the next container starts once the sidecar has
started, and the sidecar restarts whenever it ends. Upstream: computeInitContainerActions.

Only records in the pod's current sandbox count: a new sandbox is initialized from the first init
container on.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lightkube.models.core_v1 import Pod

from kubelet_trio.model import (
    ContainerKind,
    ContainerRecord,
    ContainerState,
    PodContainer,
    RuntimePod,
    SandboxId,
    pod_containers,
    spec,
)
from kubelet_trio.pods.plan.pod_plan import PlanInput, StopContainer
from kubelet_trio.pods.plan.resize import requires_restart
from kubelet_trio.pods.plan.restarts import (
    KILLED_EXIT_CODE,
    exit_code,
    restarts_after,
    stop_as_asked,
    stop_for_resize,
)
from kubelet_trio.pods.plan.starts import has_changed
from kubelet_trio.pods.plan.termination import restart_grace

_UNKNOWN = 'Init container is in "unknown" state, try killing it before restart'


@dataclass(slots=True)
class InitPlan:
    """What to do about init containers. `is_done`: main containers may run."""

    is_done: bool
    has_failed: bool = False  # one failed and may not run again: the pod has failed
    stop: list[StopContainer] = field(default_factory=list)
    start: list[PodContainer] = field(default_factory=list)  # in the order of the spec


def has_initialized(pod: Pod, observed: RuntimePod, sandbox: SandboxId) -> bool:
    """Return whether a main container was created in a sandbox, so that its init is complete."""
    mains = {c.spec.name for c in pod_containers(pod) if c.kind is ContainerKind.MAIN}
    return any(c.name in mains and c.sandbox_id == sandbox for c in observed.containers)


def has_succeeded(record: ContainerRecord) -> bool:
    """Return whether an init container completed."""
    return (
        record.state is ContainerState.EXITED
        and record.exit_code == 0
        # Upstream's isInitContainerFailed: an OOM kill is a failure whatever the exit code.
        and record.reason != "OOMKilled"
    )


def plan_init(pod: Pod, observed: RuntimePod, sandbox: SandboxId, given: PlanInput) -> InitPlan:
    """Return what to do about the pod's init containers in `sandbox`."""
    inits = [c for c in pod_containers(pod) if c.kind is ContainerKind.INIT]
    if not inits:
        return InitPlan(is_done=True)
    planner = _InitPlanner(pod, inits, given)
    planner.plan.is_done = planner.is_past = has_initialized(pod, observed, sandbox)
    # From the last to the first: records of completed init containers may be gone from the runtime,
    # so the last one with a record shows how far initialization is.
    for index in reversed(range(len(inits))):
        record = _latest_in(observed, inits[index].spec.name, sandbox)
        planner.visit(index, record)
        if planner.plan.has_failed:
            return InitPlan(is_done=False, has_failed=True)
    if not planner.is_past:
        planner.plan.start.append(inits[0])
    planner.plan.start.reverse()
    return planner.plan


@dataclass(slots=True)
class _InitPlanner:
    """Visits the init containers from the last to the first."""

    pod: Pod
    inits: list[PodContainer]
    given: PlanInput
    is_past: bool = False  # a later container has run: this one is complete, or started
    plan: InitPlan = field(default_factory=lambda: InitPlan(is_done=False))

    def visit(self, index: int, record: ContainerRecord | None) -> None:
        container = self.inits[index]
        if record is None:
            if self.is_past and container.is_sidecar:
                self.plan.start.append(container)
            return
        if self.is_past and not container.is_sidecar:
            return
        if record.state is ContainerState.CREATED:
            self.plan.start.append(container)
        elif record.state is ContainerState.RUNNING:
            if container.is_sidecar:
                self._visit_running_sidecar(index, record)
        elif container.is_sidecar:
            self._restart(container, record)
        else:
            self._visit_ended(index, record)
        self.is_past = True

    def _visit_running_sidecar(self, index: int, record: ContainerRecord) -> None:
        container = self.inits[index]
        name = container.spec.name
        if self.given.started.get(record.id, True):
            self._advance(index)
        if has_changed(record, self.given):
            self._stop(record, f"Init container {name} definition changed")
        elif record.id in self.given.unhealthy:
            why = self.given.unhealthy[record.id]
            self._stop(record, f"Init container {name} {why}", restart_grace(container.spec, why))
        elif requires_restart(self.pod, container.spec, record, self.given.resize):
            self.plan.stop.append(stop_for_resize(record))
        elif record.id in self.given.asked:
            self.plan.stop.append(stop_as_asked(record))
        else:
            return
        self.plan.start.append(container)

    def _visit_ended(self, index: int, record: ContainerRecord) -> None:
        """Decide on an ordinary init container that has exited, or is in unknown state."""
        container = self.inits[index]
        if has_succeeded(record):
            self._advance(index)
            return
        # OOMKilled with exit code 0 counts as a failure, also for OnFailure.
        if restarts_after(container.spec, spec(self.pod), exit_code(record) or KILLED_EXIT_CODE):
            self._restart(container, record)
        else:
            self.plan.has_failed = True

    def _advance(self, index: int) -> None:
        """Let the next init container start, or, after the last, the main containers."""
        if index + 1 == len(self.inits):
            self.plan.is_done = True
        elif not self.is_past:
            self.plan.start.append(self.inits[index + 1])

    def _restart(self, container: PodContainer, record: ContainerRecord) -> None:
        if record.state is ContainerState.UNKNOWN:
            self._stop(record, _UNKNOWN)
        self.plan.start.append(container)

    def _stop(self, record: ContainerRecord, message: str, grace: int | None = None) -> None:
        self.plan.stop.append(StopContainer(record.id, record.name, message, grace))


def _latest_in(observed: RuntimePod, name: str, sandbox: SandboxId) -> ContainerRecord | None:
    return next((c for c in observed.of(name) if c.sandbox_id == sandbox), None)
