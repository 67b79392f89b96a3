"""What a pod's status becomes when ours meets the API server's: pure.

The node is the source of most of it. Others own conditions (readiness gates, the
scheduler's), claim statuses and the nominated node; what was reported once, the start time
and a terminal phase above all, never goes back. Source: mergePodStatus in
status/status_manager.go and pkg/util/pod.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from typing import Any

import msgspec
from lightkube.models.core_v1 import Pod, PodCondition, PodStatus

from kubelet_trio.kube import make_strategic
from kubelet_trio.model import TERMINAL_PHASES, is_mirror, metadata

# Conditions that are the node's alone; it takes them away, too.
OWNED = frozenset(
    {
        "AllContainersRestarting",
        "ContainersReady",
        "Initialized",
        "PodReadyToStartContainers",
        "PodResizeInProgress",
        "PodResizePending",
        "PodScheduled",
        "Ready",
    }
)
SHARED = "DisruptionTarget"  # anyone's; ours is told with the terminal phase, not before
_THEIRS = (
    "nominatedNodeName",
    "resourceClaimStatuses",
    "extendedResourceClaimStatus",
    "nodeAllocatableResourceClaimStatuses",
)
_ENDED = {"Succeeded": "PodCompleted", "Failed": "PodFailed"}


def merge_status(theirs: PodStatus, ours: PodStatus, now: datetime.datetime) -> PodStatus:
    """Return the status to write.

    Args:
        theirs: as the API server has it.
        ours: as the pod's worker told it last.
        now: the time of transitions that come of the merge itself.
    """
    was_terminal = theirs.phase in TERMINAL_PHASES
    ends_now = not was_terminal and ours.phase in TERMINAL_PHASES
    merged = msgspec.structs.replace(
        ours,
        conditions=_conditions(theirs.conditions or (), ours.conditions or (), ends_now),
        startTime=theirs.startTime or ours.startTime,
        observedGeneration=max(ours.observedGeneration or 0, theirs.observedGeneration or 0)
        or None,
        **{name: getattr(theirs, name) for name in _THEIRS},
    )
    if was_terminal:
        merged = msgspec.structs.replace(
            merged, phase=theirs.phase, reason=theirs.reason, message=theirs.message
        )
    return _unready(merged, now)


def _conditions(
    theirs: Iterable[PodCondition], ours: Iterable[PodCondition], ends_now: bool
) -> list[PodCondition]:
    kept = {c.type: c for c in theirs if c.type not in OWNED}
    own = []
    for condition in ours:
        if condition.type in OWNED:
            own.append(condition)
        elif condition.type == SHARED and ends_now:
            kept[SHARED] = condition
    return [*kept.values(), *own]


def _unready(status: PodStatus, now: datetime.datetime) -> PodStatus:
    """Never tell of a pod that has ended and is ready."""
    if status.phase not in TERMINAL_PHASES:
        return status
    conditions = [
        msgspec.structs.replace(
            c, status="False", reason=_ENDED[status.phase], message=None, lastTransitionTime=now
        )
        if c.type in ("Ready", "ContainersReady") and c.status == "True"
        else c
        for c in status.conditions or ()
    ]
    return msgspec.structs.replace(status, conditions=conditions)


def status_patch(theirs: PodStatus, merged: PodStatus) -> dict[str, Any]:
    """Return the `status` of a strategic merge patch; empty where nothing differs."""
    before = {"status": msgspec.to_builtins(theirs)}
    after = {"status": msgspec.to_builtins(merged)}
    patch: dict[str, Any] = make_strategic(before, after, "Pod").get("status", {})
    return patch


def may_be_deleted(pod: Pod, *, is_finished: bool) -> bool:
    """Return whether the node is to delete a pod's object for good.

    Somebody asked for it, its terminal phase is known to all, and nothing of it is left here.

    Args:
        pod: as the API server has it.
        is_finished: whether its worker has taken it down.
    """
    phase = pod.status.phase if pod.status is not None else None
    asked = metadata(pod).deletionTimestamp is not None
    return asked and is_finished and phase in TERMINAL_PHASES and not is_mirror(pod)


def is_newer(pod: Pod, than: Pod) -> bool:
    """Return whether one state of an object came after another.

    Resource versions of one kind are numbers that grow; where a server has others, what
    arrives last counts.
    """
    one, other = metadata(pod).resourceVersion or "", metadata(than).resourceVersion or ""
    if one.isdigit() and other.isdigit():
        return int(one) > int(other)
    return one != other
