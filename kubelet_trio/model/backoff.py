"""How long to wait before the next try of what keeps failing: pure, without a clock."""

from __future__ import annotations

import math
import random
from collections.abc import Callable


def backoff_delay(first: float, cap: float, failures: int, *, factor: float = 2.0) -> float:
    """Return the seconds to wait after this many failures in a row, counted from 1."""
    # The exponent is bounded: a float overflows after 1024 doublings.
    return min(cap, first * factor ** min(failures - 1, 64))


class Backoff:
    """The delays of one thing that keeps failing, in seconds: each is longer, up to a cap."""

    def __init__(
        self,
        first: float,
        cap: float,
        *,
        factor: float = 2.0,
        jitter: float = 0.0,
        reset_after: float = math.inf,
        rand: Callable[[], float] = random.random,
    ) -> None:
        """Begin without a failure.

        Args:
            first: the delay after the first failure.
            cap: the longest delay, jitter left aside.
            factor: by how much each delay exceeds the one before.
            jitter: each delay is longer by a random share of itself, at most this one.
            reset_after: a failure that comes this long after the last delay's end is a first one.
            rand: returns a number from 0 to 1, for the jitter.
        """
        self._first = first
        self._cap = cap
        self._factor = factor
        self._jitter = jitter
        self._reset_after = reset_after
        self._rand = rand
        self._failures = 0
        self._last = -math.inf  # when the last delay ended

    @property
    def is_reset(self) -> bool:
        """Whether nothing has failed since the start or the last `reset`."""
        return self._failures == 0

    def next_delay(self, now: float = 0.0) -> float:
        """Count a failure at `now`, which only `reset_after` needs; return the seconds to wait."""
        if now - self._last > self._reset_after:
            self._failures = 0
        self._failures += 1
        delay = backoff_delay(self._first, self._cap, self._failures, factor=self._factor)
        delay *= 1 + self._jitter * self._rand()
        self._last = now + delay
        return delay

    def reset(self) -> None:
        """Begin with the shortest delay again: something succeeded."""
        self._failures = 0
