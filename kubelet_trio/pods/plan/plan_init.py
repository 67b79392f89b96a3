"""The part of a plan that is about init containers: what runs next, what runs again.

Ordinary init containers run strictly one after the other, each to exit code 0. A sidecar
(restart policy Always) stays: the next container starts once it has started, and it is
started again whenever it ends. Source: computeInitContainerActions.

The list is read from its end: records of completed init containers may be gone from the
runtime, so the last one that has a record tells how far initialization is. Only records in
the pod's present sandbox count; a new sandbox is initialized from the first one on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lightkube.models.core_v1 import Pod

from kubelet_trio.model import (
    ContainerId,
    ContainerKind,
    ContainerRecord,
    ContainerState,
    PodContainer,
    RuntimePod,
    SandboxId,
    pod_containers,
    spec,
)
from kubelet_trio.pods.plan.grace import restart_grace
from kubelet_trio.pods.plan.restart import KILLED, exit_code, restarts_after
from kubelet_trio.pods.plan.starts import has_changed
from kubelet_trio.pods.types import StopContainer

_UNKNOWN = 'Init container is in "unknown" state, try killing it before restart'


@dataclass(slots=True)
class InitPlan:
    """What to do about init containers. `is_done`: main containers may run."""

    is_done: bool
    has_failed: bool = False  # one failed and may not run again: so has the pod
    stop: list[StopContainer] = field(default_factory=list)
    start: list[PodContainer] = field(default_factory=list)  # in the order of the spec


def has_initialized(pod: Pod, observed: RuntimePod, sandbox: SandboxId) -> bool:
    """Return whether a main container was made in this sandbox: all init containers were done."""
    mains = {c.spec.name for c in pod_containers(pod) if c.kind is ContainerKind.MAIN}
    return any(c.name in mains and c.sandbox_id == sandbox for c in observed.containers)


def has_succeeded(record: ContainerRecord) -> bool:
    """Return whether an init container is done. An OOM kill is a failure, even with code 0."""
    return (
        record.state is ContainerState.EXITED
        and record.exit_code == 0
        and record.reason != "OOMKilled"
    )


def plan_init(
    pod: Pod,
    observed: RuntimePod,
    sandbox: SandboxId,
    *,
    hashes: Mapping[str, int],
    started: Mapping[ContainerId, bool],
    unhealthy: Mapping[ContainerId, str],
) -> InitPlan:
    """Return what to do about the pod's init containers in `sandbox`; see `plan_pod`."""
    inits = [c for c in pod_containers(pod) if c.kind is ContainerKind.INIT]
    if not inits:
        return InitPlan(is_done=True)
    walk = _Walk(pod, inits, hashes, started, unhealthy)
    walk.plan.is_done = walk.is_past = has_initialized(pod, observed, sandbox)
    for index in reversed(range(len(inits))):
        record = _latest_in(observed, inits[index].spec.name, sandbox)
        walk.visit(index, record)
        if walk.plan.has_failed:
            return InitPlan(is_done=False, has_failed=True)
    if not walk.is_past:
        walk.plan.start.append(inits[0])
    walk.plan.start.reverse()
    return walk.plan


@dataclass(slots=True)
class _Walk:
    """The walk from the last init container to the first."""

    pod: Pod
    inits: list[PodContainer]
    hashes: Mapping[str, int]
    started: Mapping[ContainerId, bool]
    unhealthy: Mapping[ContainerId, str]
    is_past: bool = False  # a later container has run, so this one is done
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
                self._running_sidecar(index, record)
        elif container.is_sidecar:
            self._restart(container, record)
        else:
            self._ended_init(index, record)
        self.is_past = True

    def _running_sidecar(self, index: int, record: ContainerRecord) -> None:
        container = self.inits[index]
        name = container.spec.name
        if self.started.get(record.id, True):
            self._advance(index)
        if has_changed(record, self.hashes):
            self._kill(record, f"Init container {name} definition changed")
        elif record.id in self.unhealthy:
            why = self.unhealthy[record.id]
            self._kill(record, f"Init container {name} {why}", restart_grace(container.spec, why))
        else:
            return
        self.plan.start.append(container)

    def _restart(self, container: PodContainer, record: ContainerRecord) -> None:
        if record.state is ContainerState.UNKNOWN:
            self._kill(record, _UNKNOWN)
        self.plan.start.append(container)

    def _ended_init(self, index: int, record: ContainerRecord) -> None:
        """Decide on an ordinary init container that ended, or may have."""
        container = self.inits[index]
        if has_succeeded(record):
            self._advance(index)
            return
        if restarts_after(container.spec, spec(self.pod), exit_code(record) or KILLED):
            self._restart(container, record)
        else:
            self.plan.has_failed = True

    def _advance(self, index: int) -> None:
        """One is through: the next may start, or, after the last, the main containers."""
        if index + 1 == len(self.inits):
            self.plan.is_done = True
        elif not self.is_past:
            self.plan.start.append(self.inits[index + 1])

    def _kill(self, record: ContainerRecord, message: str, grace: int | None = None) -> None:
        self.plan.stop.append(StopContainer(record.id, record.name, message, grace))


def _latest_in(observed: RuntimePod, name: str, sandbox: SandboxId) -> ContainerRecord | None:
    return next((c for c in observed.of(name) if c.sandbox_id == sandbox), None)
