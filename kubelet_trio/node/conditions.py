"""The node's conditions, in the order, words and reasons of the Go kubelet.

A transition time moves only with the status; conditions of other owners (above all
NetworkUnavailable) are kept as they are. Ready comes last, as old control planes expect.
Source: pkg/kubelet/nodestatus/setters.go.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from lightkube.models.core_v1 import NodeCondition

from kubelet_trio.model import to_datetime
from kubelet_trio.node.types import Pressure

OWNED = ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready")
_GONE = frozenset({"OutOfDisk"})  # of kubelets before 1.12


class _Words(NamedTuple):
    reason: str
    message: str
    event: str


class _Signal(NamedTuple):
    short: _Words
    well: _Words


_PRESSURES = {
    "MemoryPressure": _Signal(
        _Words(
            "KubeletHasInsufficientMemory",
            "kubelet has insufficient memory available",
            "NodeHasInsufficientMemory",
        ),
        _Words(
            "KubeletHasSufficientMemory",
            "kubelet has sufficient memory available",
            "NodeHasSufficientMemory",
        ),
    ),
    "DiskPressure": _Signal(
        _Words("KubeletHasDiskPressure", "kubelet has disk pressure", "NodeHasDiskPressure"),
        _Words("KubeletHasNoDiskPressure", "kubelet has no disk pressure", "NodeHasNoDiskPressure"),
    ),
    "PIDPressure": _Signal(
        _Words(
            "KubeletHasInsufficientPID",
            "kubelet has insufficient PID available",
            "NodeHasInsufficientPID",
        ),
        _Words(
            "KubeletHasSufficientPID",
            "kubelet has sufficient PID available",
            "NodeHasSufficientPID",
        ),
    ),
}


def node_conditions(
    before: Sequence[NodeCondition], pressure: Pressure, not_ready: Sequence[str], now: float
) -> list[NodeCondition]:
    """Return all conditions, those of other owners first."""
    there = {c.type: c for c in before}
    found = {
        "MemoryPressure": pressure.memory,
        "DiskPressure": pressure.disk,
        "PIDPressure": pressure.pid,
    }
    own = []
    for type_, is_short in found.items():
        words = _PRESSURES[type_].short if is_short else _PRESSURES[type_].well
        status = "True" if is_short else "False"
        own.append(_condition(type_, status, words.reason, words.message, there, now))
    if not_ready:
        message = not_ready[0] if len(not_ready) == 1 else f"[{', '.join(not_ready)}]"
        own.append(_condition("Ready", "False", "KubeletNotReady", message, there, now))
    else:
        text = "kubelet is posting ready status"
        own.append(_condition("Ready", "True", "KubeletReady", text, there, now))
    return [c for c in before if c.type not in OWNED and c.type not in _GONE] + own


def _condition(
    type_: str,
    status: str,
    reason: str,
    message: str,
    there: dict[str, NodeCondition],
    now: float,
) -> NodeCondition:
    before, moment = there.get(type_), to_datetime(now)
    same = before is not None and before.status == status
    since = before.lastTransitionTime if before is not None and same else None
    return NodeCondition(
        type=type_,
        status=status,
        reason=reason,
        message=message,
        lastHeartbeatTime=moment,
        lastTransitionTime=since or moment,
    )


def transitions(before: Sequence[NodeCondition], after: Sequence[NodeCondition]) -> list[str]:
    """Return the reasons of the events that tell of changes, in the order of conditions.

    As upstream, a node that had no Ready condition yet has not become ready by an event.
    """
    there = {c.type: c.status for c in before}
    reasons = []
    for condition in after:
        if condition.type not in OWNED or there.get(condition.type) == condition.status:
            continue
        is_true = condition.status == "True"
        if condition.type == "Ready":
            if "Ready" in there:
                reasons.append("NodeReady" if is_true else "NodeNotReady")
        else:
            signal = _PRESSURES[condition.type]
            reasons.append((signal.short if is_true else signal.well).event)
    return reasons
