"""The node's conditions, with the order, messages and reasons of the Go kubelet.

The transition time changes only with the status. Conditions of other owners, such as
NetworkUnavailable, are kept. Source: pkg/kubelet/nodestatus/setters.go, and runtime.go for the
runtime's readiness.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lightkube.models.core_v1 import NodeCondition

from kubelet_trio.cri import RuntimeState
from kubelet_trio.model import to_datetime
from kubelet_trio.node.types import Pressure

OWNED = ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready")
_OBSOLETE = frozenset({"OutOfDisk"})  # of kubelets before 1.12; removed, as the Go kubelet does
# Seconds for which a runtime may be away before the node is not ready (maxWaitForContainerRuntime).
RUNTIME_LIMIT = 30.0
_NOT_READY = "RuntimeReady=false"  # how a runtime's own report of a problem begins


class _Words(NamedTuple):
    reason: str
    message: str
    event: str


class _Signal(NamedTuple):
    under_pressure: _Words
    without_pressure: _Words


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
    """Return all conditions: those of other owners first, then ours."""
    existing = {c.type: c for c in before}
    found = {
        "MemoryPressure": pressure.memory,
        "DiskPressure": pressure.disk,
        "PIDPressure": pressure.pid,
    }
    own = []
    for type_, has_pressure in found.items():
        signal = _PRESSURES[type_]
        words = signal.under_pressure if has_pressure else signal.without_pressure
        status = "True" if has_pressure else "False"
        own.append(_condition(type_, status, words.reason, words.message, existing, now))
    # Ready comes last, as old control planes expect.
    if not_ready:
        message = not_ready[0] if len(not_ready) == 1 else f"[{', '.join(not_ready)}]"
        own.append(_condition("Ready", "False", "KubeletNotReady", message, existing, now))
    else:
        text = "kubelet is posting ready status"
        own.append(_condition("Ready", "True", "KubeletReady", text, existing, now))
    return [c for c in before if c.type not in OWNED and c.type not in _OBSOLETE] + own


def _condition(
    type_: str,
    status: str,
    reason: str,
    message: str,
    existing: dict[str, NodeCondition],
    now: float,
) -> NodeCondition:
    before, moment = existing.get(type_), to_datetime(now)
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
    """Return the reasons of the events for changed conditions, in the conditions' order.

    As upstream, the first Ready condition of a node is no change.
    """
    statuses = {c.type: c.status for c in before}
    reasons = []
    for condition in after:
        if condition.type not in OWNED or statuses.get(condition.type) == condition.status:
            continue
        is_true = condition.status == "True"
        if condition.type == "Ready":
            if "Ready" in statuses:
                reasons.append("NodeReady" if is_true else "NodeNotReady")
        else:
            signal = _PRESSURES[condition.type]
            words = signal.under_pressure if is_true else signal.without_pressure
            reasons.append(words.event)
    return reasons


@dataclass(slots=True)
class RuntimeWatch:
    """Remembers when the runtime was last ready. One writer: the status loop."""

    last_ready: float | None = None  # trio time; None: never since the agent's start

    def problems(self, state: RuntimeState, now: float) -> list[str]:
        """Return the runtime's problems because of which the node is not ready."""
        found = []
        if state.is_ready:
            self.last_ready = now
        elif state.problem.startswith(_NOT_READY):
            found.append(f"container runtime not ready: {state.problem}")
        elif self.last_ready is None:
            found.append("container runtime status check may not have completed yet")
        elif now >= self.last_ready + RUNTIME_LIMIT:
            found.append("container runtime is down")
        # The last network state of a runtime that is away is out of date.
        if state.network_problem and (state.is_ready or self.last_ready is None):
            found.append(f"container runtime network not ready: {state.network_problem}")
        return found
