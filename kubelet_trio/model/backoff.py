"""Delays between the retries of an operation that keeps failing: pure, without a clock."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from contextvars import ContextVar

_chance: ContextVar[Callable[[], float]] = ContextVar("chance", default=random.random)


def chance() -> float:
    """Return a number from 0 to 1 at random, for a jitter; in a replay 0."""
    return _chance.get()()


def without_chance() -> None:
    """Let `chance` return 0 in this context from now on: delays are the shortest."""
    _chance.set(lambda: 0.0)


def backoff_delay(first: float, cap: float, failures: int, *, factor: float = 2.0) -> float:
    """Return the seconds to wait after this many failures in a row, counted from 1."""
    # The exponent is bounded: a float overflows after 1024 doublings.
    return min(cap, first * factor ** min(failures - 1, 64))


class Backoff:
    """The delays of one operation, in seconds: longer after each failure, up to a cap."""

    def __init__(
        self,
        first: float,
        cap: float,
        *,
        factor: float = 2.0,
        jitter: float = 0.0,
        reset_after: float = math.inf,
        rand: Callable[[], float] = chance,
    ) -> None:
        """Begin without a failure.

        Args:
            first: the delay after the first failure.
            cap: the longest delay, before jitter.
            factor: each delay is the one before times this.
            jitter: the largest random share of itself that is added to a delay.
            reset_after: a failure this long after the end of the last delay counts as the first.
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
        """Start again with the shortest delay: the operation succeeded."""
        self._failures = 0
