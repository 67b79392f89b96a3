"""Compare statuses and plans with the recorded ones. Pure.

Only what a decision shows is compared: phases, states, restarts, waits and their ends; not ids,
addresses, messages or the times of conditions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from lightkube.models.core_v1 import PodStatus

from kubelet_trio.node import Pressure
from kubelet_trio.pods import PodPlan
from kubelet_trio.replay.matching import RETRY_SPREAD

_LISTS = ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses")
_CRASHED = "CrashLoopBackOff"
_COMPARED = ("start", "stop", "sandbox", "waiting", "retry_at", "finished")


def status_words(status: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return what a status says, in words of one fact each."""
    if status is None:
        return ("no status",)
    phase, reason = status.get("phase") or "Pending", status.get("reason")
    words = [f"{phase} ({reason})" if reason else str(phase)]
    if phase in ("Running", "Pending"):
        words.append("ready" if _is_ready(status) else "not ready")
    for name in _LISTS:
        words += [_container(each) for each in status.get(name) or ()]
    return tuple(words)


def health_words(status: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return which devices of containers are unhealthy, one container a word."""
    found = []
    for container in (status or {}).get("containerStatuses") or ():
        resources = container.get("allocatedResourcesStatus") or ()
        devices = [each for resource in resources for each in resource.get("resources") or ()]
        ids = sorted(str(d.get("resourceID")) for d in devices if d.get("health") == "Unhealthy")
        if ids:
            found.append(f"{container.get('name')} has unhealthy devices: {', '.join(ids)}")
    return tuple(found)


def plain_status(status: PodStatus | None) -> Mapping[str, Any] | None:
    """Return a status as a recording has it."""
    found: Mapping[str, Any] | None = msgspec.to_builtins(status) if status is not None else None
    return found


def _is_ready(status: Mapping[str, Any]) -> bool:
    conditions = status.get("conditions") or ()
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)


def _container(container: Mapping[str, Any]) -> str:
    state = container.get("state") or {}
    text = "waiting"
    if (waiting := state.get("waiting")) is not None:
        text = f"waiting ({waiting.get('reason')})"
    elif (ended := state.get("terminated")) is not None:
        text = f"ended with {ended.get('exitCode', 0)} ({ended.get('reason')})"
    elif state.get("running") is not None:
        text = "running"
    count = container.get("restartCount") or 0
    return f"{container.get('name')} {text}" + (f", {count} restarts" if count else "")


def recorded_plan(plan: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what is compared of a recorded plan."""
    return {
        "start": [f"{s['name']}, attempt {s['attempt']}" for s in plan.get("start") or ()],
        "stop": sorted(str(stop["name"]) for stop in plan.get("stop_containers") or ()),
        "sandbox": bool(plan.get("create_sandbox")),
        "waiting": {name: why[0] for name, why in (plan.get("waiting") or {}).items()},
        "retry_at": plan.get("retry_at"),
        "finished": bool(plan.get("finished")),
    }


def current_plan(plan: PodPlan) -> Mapping[str, Any]:
    """Return the same of a plan."""
    return {
        "start": [f"{s.container.spec.name}, attempt {s.attempt}" for s in plan.start],
        "stop": sorted(stop.name for stop in plan.stop_containers),
        "sandbox": plan.create_sandbox,
        "waiting": {name: why.reason for name, why in plan.waiting.items()},
        "retry_at": plan.retry_at,
        "finished": plan.finished,
    }


def plan_difference(
    recorded: Mapping[str, Any], now: Mapping[str, Any], tolerance: float
) -> tuple[str, ...] | None:
    """Return how two plans (`plan_facts`) differ, recorded and now; None if they do the same."""
    then, ours = recorded.get("retry_at"), now.get("retry_at")
    for name in _COMPARED:
        if name == "retry_at" and then is not None and ours is not None:
            # Only the back-off of crash loops has no jitter.
            is_exact = set((recorded.get("waiting") or {}).values()) <= {_CRASHED}
            spread = 0.0 if is_exact else RETRY_SPREAD
            if not -tolerance <= then - ours <= tolerance + spread:
                return tuple(f"the back-off ends at {clock_words(t)}" for t in (then, ours))
        elif recorded.get(name) != now.get(name):
            return _words(name, recorded.get(name)), _words(name, now.get(name))
    return None


def _words(name: str, value: Any) -> str:
    if name == "start":
        return f"start {'; '.join(value)}" if value else "start nothing"
    if name == "stop":
        return f"stop {', '.join(value)}" if value else "stop nothing"
    if name == "sandbox":
        return "create a sandbox" if value else "create no sandbox"
    if name == "waiting":
        return ", ".join(_waits(value)) or "no container waits"
    if name == "finished":
        return "every container has ended for good" if value else "it has not ended for good"
    return "no back-off" if value is None else "a back-off"


def clock_words(wall: float) -> str:
    """Return a wall time as a report has it: 2026-01-01T00:00:00.0Z."""
    moment = datetime.fromtimestamp(wall, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 100_000}Z"


def _waits(value: Mapping[str, str]) -> Iterator[str]:
    for container, reason in sorted(value.items()):
        yield f"{container} waits: {reason}"


def pressure_words(pressure: Pressure) -> str:
    """Return the node's conditions of pressure, "" if there are none."""
    found = {
        "MemoryPressure": pressure.memory,
        "DiskPressure": pressure.disk,
        "PIDPressure": pressure.pid,
    }
    return ", ".join(name for name, is_met in found.items() if is_met)


def joined(words: Sequence[str]) -> str:
    return "; ".join(words)
