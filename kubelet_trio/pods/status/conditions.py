"""Compute the pod conditions of the kubelet, in the order and words of the Go kubelet.

A condition's transition time changes only with its status; its observed generation is that of the
pod's status. Those of a resize (KEP-1287) have the generation that asked for it, and are dated by
their reason: their status is always True. Conditions of other owners are kept unchanged. Upstream:
status/generate.go, and updatedPodResizeCondition of status/status_manager.go.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
from lightkube.models.core_v1 import ContainerStatus, Pod, PodCondition, PodStatus

from kubelet_trio.model import (
    ContainerKind,
    RuntimePod,
    could_restart_all,
    pod_containers,
    spec,
    to_datetime,
)
from kubelet_trio.pods.plan import (
    RESTARTING_ALL,
    current_sandbox,
    is_restarting_all,
    left_to_remove,
    restarts_all,
)
from kubelet_trio.pods.types import PodStage, StatusInput

_ENDED = {"Succeeded": "PodCompleted", "Failed": "PodFailed"}
_RESTART_STARTED = "RestartAllContainersStarted"
_RESTART_MESSAGE = "container exited with restart policy rule"
_RESIZE_PENDING, _RESIZE_IN_PROGRESS = "PodResizePending", "PodResizeInProgress"
_COMPUTED = frozenset(
    {
        "PodScheduled",
        "PodReadyToStartContainers",
        "Initialized",
        "Ready",
        "ContainersReady",
        RESTARTING_ALL,
        _RESIZE_PENDING,
        _RESIZE_IN_PROGRESS,
    }
)


def pod_conditions(
    pod: Pod,
    observed: RuntimePod,
    status: PodStatus,
    previous: PodStatus,
    others: Iterable[PodCondition],
    given: StatusInput,
) -> list[PodCondition]:
    """Return all conditions of a pod.

    Args:
        pod: the pod.
        observed: what the runtime reports of it.
        status: the new status, with the phase and the container statuses.
        previous: the last status reported.
        others: conditions of other owners.
        given: the time, the pod's stage and its resize.
    """
    now = to_datetime(given.now)
    kept = [c for c in others if c.type not in _COMPUTED]
    containers_ready = _containers_ready(pod, status)
    own = [
        PodCondition(
            type="PodReadyToStartContainers",
            status=_truth(current_sandbox(pod, observed) is not None),
        ),
        _initialized(pod, status, previous),
        _ready(pod, containers_ready, kept),
        containers_ready,
        PodCondition(type="PodScheduled", status="True"),
    ]
    if could_restart_all(spec(pod)):
        goes_on = given.stage is PodStage.SYNC and restarts_all(
            pod, observed, is_recorded=is_restarting_all(previous)
        )
        goes_on = goes_on and bool(left_to_remove(pod, observed))
        own.append(_restarting_all(status, goes_on=goes_on))
    before = {c.type: c for c in previous.conditions or ()}
    resize = _resize(given, observed, before, now)
    return [*kept, *resize, *(dated(c, before.get(c.type), status, now) for c in own)]


def is_initialized(status: PodStatus) -> bool:
    """Return whether a status has the condition Initialized."""
    return any(c.type == "Initialized" and c.status == "True" for c in status.conditions or ())


def _containers_ready(pod: Pod, status: PodStatus) -> PodCondition:
    by_name = _by_name(status)
    unready = [
        c.spec.name
        for c in pod_containers(pod)
        if c.kind is ContainerKind.MAIN or c.is_sidecar
        if not by_name[c.spec.name].ready
    ]
    if status.phase in _ENDED:
        return _false("ContainersReady", _ENDED[status.phase])
    # Every container of the spec has a status here, so upstream's other message (`containers with
    # unknown status`) cannot occur.
    if unready:
        return _false("ContainersReady", "ContainersNotReady", _listed("unready", unready))
    return PodCondition(type="ContainersReady", status="True")


def _ready(
    pod: Pod, containers_ready: PodCondition, others: Sequence[PodCondition]
) -> PodCondition:
    if containers_ready.status != "True":
        return msgspec.structs.replace(containers_ready, type="Ready")
    gates = {c.type: c.status for c in others}
    messages = []
    for gate in spec(pod).readinessGates or ():
        if gate.conditionType not in gates:
            messages.append(
                f'corresponding condition of pod readiness gate "{gate.conditionType}" '
                "does not exist."
            )
        elif gates[gate.conditionType] != "True":
            messages.append(
                f'the status of pod readiness gate "{gate.conditionType}" is not "True", '
                f"but {gates[gate.conditionType]}"
            )
    if messages:
        return _false("Ready", "ReadinessGatesNotReady", ", ".join(messages))
    return PodCondition(type="Ready", status="True")


def _initialized(pod: Pod, status: PodStatus, previous: PodStatus) -> PodCondition:
    by_name = _by_name(status)
    incomplete = []
    for init in pod_containers(pod):
        if init.kind is ContainerKind.INIT:
            found = by_name[init.spec.name]
            done = found.started if init.is_sidecar else found.ready
            incomplete += [] if done else [init.spec.name]
    if status.phase == "Succeeded":
        return PodCondition(type="Initialized", status="True", reason="PodCompleted")
    # Once initialized the pod stays so, even while a sidecar restarts.
    if not incomplete or is_initialized(previous) or _any_main_ran(status):
        return PodCondition(type="Initialized", status="True")
    return _false("Initialized", "ContainersNotInitialized", _listed("incomplete", incomplete))


def _restarting_all(status: PodStatus, *, goes_on: bool) -> PodCondition:
    if status.phase in _ENDED:
        return _false(RESTARTING_ALL, _ENDED[status.phase])
    if not goes_on:
        return PodCondition(type=RESTARTING_ALL, status="False")
    return PodCondition(
        type=RESTARTING_ALL, status="True", reason=_RESTART_STARTED, message=_RESTART_MESSAGE
    )


def _resize(
    given: StatusInput,
    observed: RuntimePod,
    before: Mapping[str, PodCondition],
    now: datetime.datetime,
) -> Iterator[PodCondition]:
    """Yield the conditions of a resize that is pending, and of one that is in progress."""
    # determinePodResizeStatus: a pod of which nothing runs any more is not resized.
    if given.stage is not PodStage.SYNC and not any(observed.running()):
        return
    pending, resize = given.pending_resize, given.resize
    if pending is not None:
        found = _true(_RESIZE_PENDING, pending.reason, pending.message, pending.generation)
        yield _dated_by_reason(found, before.get(_RESIZE_PENDING), now)
    if resize is not None:
        last = before.get(_RESIZE_IN_PROGRESS)
        # Another generation is another resize.
        last = last if last is not None and last.observedGeneration == resize.generation else None
        # An error is shown until the resize is complete, by the next agent too.
        reason, message = (None, None) if last is None else (last.reason, last.message)
        if given.resize_error:
            reason, message = "Error", given.resize_error
        found = _true(_RESIZE_IN_PROGRESS, reason, message, resize.generation)
        yield _dated_by_reason(found, last, now)


def _dated_by_reason(
    condition: PodCondition, before: PodCondition | None, now: datetime.datetime
) -> PodCondition:
    same = before is not None and before.reason == condition.reason
    changed = before.lastTransitionTime if before is not None and same else None
    probed = before.lastProbeTime if before is not None else None
    dated = msgspec.structs.replace(
        condition, lastTransitionTime=changed or now, lastProbeTime=probed
    )
    # Upstream dates the probe at each sync. Here only a change is worth a patch.
    return dated if dated == before else msgspec.structs.replace(dated, lastProbeTime=now)


def _any_main_ran(status: PodStatus) -> bool:
    states = [c.state for c in status.containerStatuses or () if c.state is not None]
    return any(s.running is not None or s.terminated is not None for s in states)


def dated(
    condition: PodCondition,
    before: PodCondition | None,
    status: PodStatus,
    now: datetime.datetime,
) -> PodCondition:
    """Return a condition of a new status; `before` is the one of the last status."""
    same = before is not None and before.status == condition.status
    changed = before.lastTransitionTime if before is not None and same else None
    return msgspec.structs.replace(
        condition, lastTransitionTime=changed or now, observedGeneration=status.observedGeneration
    )


def _by_name(status: PodStatus) -> dict[str, ContainerStatus]:
    every = (*(status.initContainerStatuses or ()), *(status.containerStatuses or ()))
    return {c.name: c for c in every}


def _false(type_: str, reason: str, message: str | None = None) -> PodCondition:
    return PodCondition(type=type_, status="False", reason=reason, message=message)


def _true(
    type_: str, reason: str | None, message: str | None, generation: int | None
) -> PodCondition:
    return PodCondition(
        type=type_,
        status="True",
        reason=reason,
        message=message or None,
        observedGeneration=generation,
    )


def _truth(value: bool) -> str:
    return "True" if value else "False"


def _listed(kind: str, names: Sequence[str]) -> str:
    """Format names as Go prints a slice: `containers with unready status: [a b]`."""
    return f"containers with {kind} status: [{' '.join(names)}]"
