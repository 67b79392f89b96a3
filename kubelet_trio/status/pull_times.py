"""How long pods have waited for their images: the SLI of a start leaves it out.

Upstream: calculateImagePullingTime in pod_startup_latency_tracker.go, and who calls it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import trio

from kubelet_trio.model import PodUid


@dataclass(slots=True)
class _Pulls:
    begun: dict[str, float] = field(default_factory=dict)  # by image, the oldest first
    until: float = 0.0  # up to here all is counted
    seconds: float = 0.0


class PullTimes:
    """The time that each tracked pod has spent on pulls; pulls beside each other count once.

    A failed pull goes on until an image is there, so the pauses between its tries count too.
    """

    def __init__(self) -> None:
        self._pods: dict[PodUid, _Pulls] = {}

    def track(self, uid: PodUid) -> None:
        """Begin to count a pod's pulls; those of pods that are not tracked are not counted."""
        self._pods.setdefault(uid, _Pulls())

    def forget(self, uid: PodUid) -> None:
        """Count a pod's pulls no longer."""
        self._pods.pop(uid, None)

    def begin(self, uid: PodUid, image: str) -> None:
        """Note that a pod asks for a pull; it may wait for its turn."""
        if (pulls := self._pods.get(uid)) is not None:
            pulls.begun.setdefault(image, trio.current_time())

    def end(self, uid: PodUid) -> None:
        """Note that an image is there, pulled for this pod or for another one."""
        pulls = self._pods.get(uid)
        if pulls is None or not pulls.begun:
            return
        # The oldest, whichever image it was for: what is left has waited as long from then on.
        begun, now = pulls.begun.pop(next(iter(pulls.begun))), trio.current_time()
        pulls.seconds += now - max(begun, pulls.until)
        pulls.until = now

    def seconds(self, uid: PodUid) -> float:
        """Return how long the pod has waited for images that are there now."""
        pulls = self._pods.get(uid)
        return pulls.seconds if pulls is not None else 0.0
