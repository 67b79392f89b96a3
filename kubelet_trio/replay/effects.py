"""From when on readings show what a changing call has done to an object. Pure."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping

from kubelet_trio.cri import v1
from kubelet_trio.replay.observed import Observed, Versions, state_of
from kubelet_trio.replay.recorded import RecordedCall

_CREATED, _RUNNING = v1.ContainerState.CONTAINER_CREATED, v1.ContainerState.CONTAINER_RUNNING
# The states in which a call does not leave an object.
_LEFT: Mapping[str, frozenset[int]] = {
    "start_container": frozenset({_CREATED}),
    "stop_container": frozenset({_CREATED, _RUNNING}),
    "stop_pod_sandbox": frozenset({v1.PodSandboxState.SANDBOX_READY}),
}


def changed_at(call: RecordedCall, object_id: str, observed: Observed) -> float:
    """Return the time from which on a reading may show the change that a call has made.

    That is its beginning, since what is read during a call may show it already. If what was read
    shows that it did not, it is the call's end. Minus infinity: it has changed nothing.
    """
    if call.error is not None:
        return -math.inf if call.method == "pull_image" else call.began
    left, history = _LEFT.get(call.method), observed.objects(call.method).get(object_id)
    if left is None or history is None:
        return call.began
    shown = max(_last(history.listed, call.ended), _last(history.statuses, call.ended))
    return call.ended if call.began <= shown[0] and shown[1] in left else call.began


def _last(versions: Versions, until: float) -> tuple[float, int]:
    """Return when the last reading until a time was made, and the state that it shows."""
    index = bisect_right(versions.times, until) - 1
    if index < 0:
        return -math.inf, -1
    return versions.times[index], state_of(versions.readings[index].ok)
