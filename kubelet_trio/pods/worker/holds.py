"""What is held back of a pod after it failed: a container's start, or a step for all of it.

Each try that fails holds it back for longer, up to upstream's 10 s; one that succeeds, and
news that may have put right what stood in the way, begin anew.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

import trio

from kubelet_trio.model import Backoff
from kubelet_trio.pods.steps.executor import FailedStarts
from kubelet_trio.pods.types import Hold

# Retries of a step that failed: quick at first, upstream's 10 s at the most.
RETRY_BASE = 1.0
RETRY_CAP = 10.0
# The longest a container may be held back: the cap of the image pull back-off, and some.
_HOLD_MAX = 330.0
_POD = ""


class Holds:
    """The holds of one pod; its worker's."""

    def __init__(self) -> None:
        self.pod_until = 0.0  # trio time: a step for the whole pod failed
        self._holds: dict[str, Hold] = {}  # containers that failed to start
        self._backoffs: dict[str, Backoff] = {}  # by container, "" for the pod

    def clear(self) -> None:
        """Hold back nothing any more."""
        self._holds.clear()
        self._backoffs.clear()
        self.pod_until = 0.0

    def hold_pod(self) -> None:
        """A step for the whole pod failed."""
        self.pod_until = trio.current_time() + self._next_delay(_POD)

    def note(self, tried: Iterable[str], failed: FailedStarts, now: float) -> None:
        """A step is done: of the containers that it tried to start these failed.

        `now` is Unix seconds, as their holds are.
        """
        self._backoffs.pop(_POD, None)
        for name in tried:
            self._holds.pop(name, None)
            if name not in failed:
                self._backoffs.pop(name, None)
        for name, error in failed.items():
            until = error.retry_at or now + self._next_delay(name)
            self._holds[name] = Hold(until, error.waiting)

    def containers(self, now: float) -> dict[str, Hold]:
        """Return which containers are held back, by name.

        A wall clock that was set back must not hold one for as long as that.
        """
        return {n: h for n, h in self._holds.items() if h.until - now <= _HOLD_MAX}

    def _next_delay(self, name: str) -> float:
        """Return the seconds until what just failed is tried again, more each time."""
        if name not in self._backoffs:
            self._backoffs[name] = Backoff(RETRY_BASE, RETRY_CAP, jitter=0.5)
        return self._backoffs[name].next_delay()


def jittered(seconds: float) -> float:
    """Spread what many workers would otherwise do at the same moment."""
    return seconds * random.uniform(1.0, 1.5)
