"""Merges a worker's pod status with the API server's, and computes the patch: pure.

The node owns most of a status. Other components own some conditions (readiness gates, the
scheduler's), claim statuses and the nominated node. The start time and a terminal phase never
change once they were reported. Source: mergePodStatus in status/status_manager.go and
pkg/util/pod.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from typing import Any

import msgspec
from lightkube.models.core_v1 import Pod, PodCondition, PodStatus

from kubelet_trio.kube import make_strategic
from kubelet_trio.model import TERMINAL_PHASES, is_mirror, metadata

# Conditions that only the node writes and removes. Source: PodConditionByKubelet in
# pkg/kubelet/types/pod_status.go.
KUBELET_CONDITIONS = frozenset(
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
# Written by the node and by others. Source: PodConditionSharedByKubelet.
_SHARED_CONDITION = "DisruptionTarget"
_SERVER_FIELDS = (
    "nominatedNodeName",
    "resourceClaimStatuses",
    "extendedResourceClaimStatus",
    "nodeAllocatableResourceClaimStatuses",
)
# The reasons of Ready and ContainersReady in a terminal phase (status/generate.go).
_ENDED = {"Succeeded": "PodCompleted", "Failed": "PodFailed"}


def merge_status(
    theirs: PodStatus, ours: PodStatus, now: datetime.datetime, *, is_mirror: bool = False
) -> PodStatus:
    """Return the status to write.

    Args:
        theirs: the API server's.
        ours: the newest one of the pod's worker.
        now: the time of transitions that the merge itself causes.
        is_mirror: of a static pod, whose start time is the one of the agent that runs.
    """
    was_terminal = theirs.phase in TERMINAL_PHASES
    ends_now = not was_terminal and ours.phase in TERMINAL_PHASES
    merged = msgspec.structs.replace(
        ours,
        conditions=_conditions(theirs.conditions or (), ours.conditions or (), ends_now),
        startTime=(ours.startTime if is_mirror else None) or theirs.startTime or ours.startTime,
        observedGeneration=max(ours.observedGeneration or 0, theirs.observedGeneration or 0)
        or None,
        **{name: getattr(theirs, name) for name in _SERVER_FIELDS},
    )
    # A terminal phase is final: an agent that lost its records must not revive the pod.
    if was_terminal:
        merged = msgspec.structs.replace(
            merged, phase=theirs.phase, reason=theirs.reason, message=theirs.message
        )
    return _unready(merged, now)


def _conditions(
    theirs: Iterable[PodCondition], ours: Iterable[PodCondition], ends_now: bool
) -> list[PodCondition]:
    kept = {c.type: c for c in theirs if c.type not in KUBELET_CONDITIONS}
    own = []
    for condition in ours:
        if condition.type in KUBELET_CONDITIONS:
            own.append(condition)
        # Together with the terminal phase, not before: controllers act on the condition, and the
        # containers have to be gone by then (mergePodStatus).
        elif condition.type == _SHARED_CONDITION and ends_now:
            kept[_SHARED_CONDITION] = condition
    return [*kept.values(), *own]


def _unready(status: PodStatus, now: datetime.datetime) -> PodStatus:
    """Set Ready and ContainersReady to False in a terminal status."""
    # As mergePodStatus: no terminal phase with Ready=True (kubernetes/kubernetes#108594).
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
    """Return the `status` of a strategic merge patch; empty if nothing differs."""
    before = {"status": msgspec.to_builtins(theirs)}
    after = {"status": msgspec.to_builtins(merged)}
    patch: dict[str, Any] = make_strategic(before, after, "Pod").get("status", {})
    return patch


def may_be_deleted(pod: Pod, *, is_finished: bool) -> bool:
    """Return whether the node is to delete a pod's object for good.

    True if its deletion was requested, the server has its terminal phase, and the node has
    removed everything of it.

    Args:
        pod: the API server's object.
        is_finished: whether its worker has taken it down.
    """
    # The phase at the server, not that of the worker: once the object is gone, no client can
    # read the final status (canBeDeleted in status/status_manager.go).
    phase = pod.status.phase if pod.status is not None else None
    asked = metadata(pod).deletionTimestamp is not None
    return asked and is_finished and phase in TERMINAL_PHASES and not is_mirror(pod)
