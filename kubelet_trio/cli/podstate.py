"""The columns READY, STATUS and RESTARTS of a pod, as kubectl computes them. Pure.

Works on decoded JSON, so that the commands need no models.
Source: printPod in pkg/printers/internalversion/printers.go.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kubelet_trio.cli.ages import parse_time
from kubelet_trio.durations import human_duration

Json = Mapping[str, Any]
TERMINAL_PHASES = ("Succeeded", "Failed")  # as in model, which commands do not load


@dataclass(frozen=True, slots=True)
class PodSummary:
    """The computed columns of one pod."""

    ready: str
    status: str
    restarts: str


def part(thing: Json, *names: str) -> Json:
    """Return a nested object, empty if it is missing."""
    for name in names:
        thing = thing.get(name) or {}
    return thing


def items(thing: Json, name: str) -> Sequence[Json]:
    """Return a list of objects, empty if it is missing."""
    return thing.get(name) or ()


def summarize(pod: Json, now: float) -> PodSummary:
    """Return the columns of a pod at `now` (Unix seconds)."""
    status = part(pod, "status")
    sidecars = {c.get("name") for c in items(part(pod, "spec"), "initContainers") if _is_sidecar(c)}
    inits = items(status, "initContainerStatuses")
    mains = items(status, "containerStatuses")
    reason = status.get("reason") or status.get("phase") or "Unknown"
    total = len(items(part(pod, "spec"), "containers")) + len(sidecars)
    ready = 0
    init_reason, ready_sidecars = _init_reason(pod, inits, sidecars)
    ready += ready_sidecars
    counted: list[Json] = list(inits)
    # A pod that is Initialized shows its main containers, even while a sidecar restarts
    # (isPodInitializedConditionTrue in printPod).
    if not init_reason or _has_condition(status, "Initialized"):
        reason = init_reason or reason
        counted = [s for s in inits if s.get("name") in sidecars] + list(mains)
        main_reason, ready_mains = _main_reason(mains)
        ready += ready_mains
        reason = main_reason or reason
        # A container has ended, another still runs (printPod: "change pod status back").
        if reason == "Completed" and ready_mains:
            reason = "Running" if _has_condition(status, "Ready") else "NotReady"
    else:
        reason = init_reason
    if part(pod, "metadata").get("deletionTimestamp"):
        # NodeUnreachablePodReason: the node cannot confirm that the pod terminates.
        if status.get("reason") == "NodeLost":
            reason = "Unknown"
        elif status.get("phase") not in TERMINAL_PHASES:
            reason = "Terminating"
    return PodSummary(f"{ready}/{total}", reason, _restarts(counted, now))


def grace_left(pod: Json, now: float) -> float | None:
    """Return the seconds of grace that a terminating pod has left, None if it does not end.

    `now` is in Unix seconds. The API server's deletionTimestamp is the end of the grace period.
    """
    meta = part(pod, "metadata")
    until = parse_time(meta.get("deletionTimestamp"))
    if until is None or part(pod, "status").get("phase") in TERMINAL_PHASES:
        return None
    return max(0.0, until - now)


def _is_sidecar(container: Json) -> bool:
    return container.get("restartPolicy") == "Always"


def _init_reason(pod: Json, statuses: Sequence[Json], sidecars: set[Any]) -> tuple[str, int]:
    """Return why the pod still initializes ("" if it does not) and its ready sidecars."""
    ready = 0
    for index, status in enumerate(statuses):
        terminated = part(status, "state", "terminated")
        is_ended = "terminated" in part(status, "state")
        waiting = part(status, "state", "waiting").get("reason")
        if is_ended and not terminated.get("exitCode"):
            continue
        # A started sidecar lets the next init container run: it is counted, not waited for.
        if status.get("name") in sidecars and status.get("started"):
            ready += bool(status.get("ready"))
            continue
        if is_ended:
            return f"Init:{_ended(terminated)}", ready
        if waiting and waiting != "PodInitializing":
            return f"Init:{waiting}", ready
        return f"Init:{index}/{len(items(part(pod, 'spec'), 'initContainers'))}", ready
    return "", ready


def _main_reason(statuses: Sequence[Json]) -> tuple[str, int]:
    """Return the reason of the first container that does not run, or "", and the ready ones."""
    # In reverse, as in kubectl: the reason of the first container wins.
    reason, ready = "", 0
    for status in reversed(statuses):
        state = part(status, "state")
        if waiting := part(state, "waiting").get("reason"):
            reason = waiting
        elif "terminated" in state:
            reason = _ended(part(state, "terminated"))
        elif status.get("ready") and "running" in state:
            ready += 1
    return reason, ready


def _ended(terminated: Json) -> str:
    if reason := terminated.get("reason"):
        return str(reason)
    if signal := terminated.get("signal"):
        return f"Signal:{signal}"
    return f"ExitCode:{terminated.get('exitCode', 0)}"


def _has_condition(status: Json, kind: str) -> bool:
    return any(
        c.get("type") == kind and c.get("status") == "True" for c in items(status, "conditions")
    )


def _restarts(statuses: Sequence[Json], now: float) -> str:
    count = sum(status.get("restartCount") or 0 for status in statuses)
    ends = [
        parse_time(part(status, "lastState", "terminated").get("finishedAt")) for status in statuses
    ]
    last = max((end for end in ends if end), default=None)
    return f"{count} ({human_duration(now - last)} ago)" if count and last else str(count)
