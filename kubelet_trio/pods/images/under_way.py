"""The pulls under way, for those who ask what a pod waits for."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from kubelet_trio.model import PodUid, WallClock, pod_uid
from kubelet_trio.pods.images.request import ImageRequest


@dataclass(frozen=True, slots=True)
class Pull:
    """A pull under way. CRI has no progress in bytes: all that is known is since when."""

    uid: PodUid
    container: str
    image: str
    since: float  # Unix seconds
    is_queued: bool  # it waits for other pulls, as `maxParallelImagePulls` and its kin say


class PullsUnderWay:
    """The pulls that have been asked for and have not ended."""

    def __init__(self, clock: WallClock) -> None:
        self._clock = clock
        self._pulls: dict[object, Pull] = {}

    @property
    def pulls(self) -> Sequence[Pull]:
        """The pulls under way, the oldest first."""
        return sorted(self._pulls.values(), key=lambda pull: pull.since)

    @contextlib.contextmanager
    def shown(self, request: ImageRequest) -> Iterator[Callable[[], None]]:
        """Show a pull under way; it waits for its turn until the yielded function is called."""
        key = object()

        def show(is_queued: bool) -> None:
            name, since = request.container.spec.name, self._clock.time()
            uid = pod_uid(request.pod)
            self._pulls[key] = Pull(uid, name, request.image, since, is_queued)

        show(is_queued=True)
        try:
            yield partial(show, is_queued=False)
        finally:
            del self._pulls[key]
