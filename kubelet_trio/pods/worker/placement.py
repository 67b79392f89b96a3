"""Wait until an admitted pod has what the managers have reserved for it."""

from __future__ import annotations

import trio
from lightkube.models.core_v1 import Pod

from kubelet_trio.managers import CheckpointError, PlacementError
from kubelet_trio.model import Backoff, pod_object_ref
from kubelet_trio.pods.admission import Rejected
from kubelet_trio.pods.services import PodServices
from kubelet_trio.pods.worker.holds import RETRY_BASE, RETRY_CAP


async def settle(services: PodServices, pod: Pod) -> Rejected | None:
    """Wait until a pod's shares are on disk; return why it is rejected, None if it is not.

    Before the pod's admission is recorded: a restarted agent must not find a pod that is admitted
    and has CPUs that no checkpoint names. A disk that refuses is retried, with an event each time.
    """
    backoff = Backoff(RETRY_BASE, RETRY_CAP)
    while True:
        try:
            await services.managers.settle(pod)
            return None
        except PlacementError as exc:
            return Rejected(exc.refusal.reason, exc.refusal.message)
        except CheckpointError as exc:
            text = f"the pod has to wait: {exc}"
            services.events.emit(pod_object_ref(pod), "Warning", "FailedSync", text)
        await trio.sleep(backoff.next_delay())
