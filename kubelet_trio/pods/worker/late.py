"""Saying that a pod which the node ends for its own sake takes longer than it was given.

Source: killPodNow of pkg/kubelet/pod_workers.go, for evictions, preemptions and shutdowns.
"""

from __future__ import annotations

import trio
from lightkube.models.core_v1 import Pod

from kubelet_trio.model import pod_object_ref
from kubelet_trio.pods.plan.termination import effective_grace
from kubelet_trio.pods.services import PodServices
from kubelet_trio.pods.types import DISRUPTIONS, TerminationRequest

_LEAST = 10.0  # seconds, minTimeout
_REASON = "ExceededGracePeriod"
_MESSAGE = "Container runtime did not kill the pod within specified grace period."


def late_after(grace: float) -> float:
    """Return the seconds after which a pod of this grace period is late: one and a half of it."""
    return max(_LEAST, grace * 1.5)


async def tell_when_late(services: PodServices, pod: Pod, request: TerminationRequest) -> None:
    """Wait until the pod is late and say so; cancelled once it has ended."""
    if request.reason not in DISRUPTIONS:
        return
    due = request.requested_at + late_after(effective_grace(pod, request))
    left = due - services.clock.time()
    if left <= 0:
        return  # said in an earlier try
    await trio.sleep(left)
    services.events.emit(pod_object_ref(pod), "Warning", _REASON, _MESSAGE)
