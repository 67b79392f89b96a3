"""`activeDeadlineSeconds`: how long a pod may be active on the node, from its start time."""

from __future__ import annotations

from lightkube.models.core_v1 import Pod

from kubelet_trio.model import spec
from kubelet_trio.pods.types import PodFailure

_REASON = "DeadlineExceeded"
_MESSAGE = "Pod was active on the node longer than the specified deadline"


def deadline_at(pod: Pod, start_time: float) -> float | None:
    """Return the Unix time at which the pod's deadline passes, None if it has none."""
    seconds = spec(pod).activeDeadlineSeconds
    return None if seconds is None else start_time + seconds


def deadline_failure(pod: Pod, start_time: float, now: float) -> PodFailure | None:
    """Return the verdict on a pod whose deadline has passed, else None."""
    deadline = deadline_at(pod, start_time)
    if deadline is None or now < deadline:
        return None
    return PodFailure(_REASON, _MESSAGE)
