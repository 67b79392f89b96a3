"""How often a client asks: a bucket of tokens, and the waits between attempts."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import trio


class TokenBucket:
    """Lets `burst` requests through at once and `qps` a second after that, in order.

    As client-go's: 0 stands for its defaults of 5 and 10, a negative rate for no limit.
    """

    def __init__(self, qps: float = 50.0, burst: int = 100) -> None:
        self._rate = math.inf if qps < 0 else qps or 5.0
        self._burst = burst if burst > 0 else 10
        self._full_at = -math.inf  # trio's time when the bucket is full again
        self._turn = trio.Lock()

    async def take(self) -> float:
        """Wait for a token and return the seconds that took.

        Whoever is cancelled has taken nothing: those behind wait no longer for it, as with
        golang.org/x/time/rate.
        """
        if math.isinf(self._rate):
            return 0.0
        began = trio.current_time()
        async with self._turn:  # first come, first served
            now = trio.current_time()
            if (delay := self._wait(now)) > 0:
                await trio.sleep(delay)
            self._full_at = max(self._full_at, now + delay) + 1 / self._rate
        return trio.current_time() - began

    def _wait(self, now: float) -> float:
        """Return the seconds until the next token is there."""
        return max(0.0, max(self._full_at, now) + (1 - self._burst) / self._rate - now)


class Backoff:
    """Waits that double from `first` to `cap` seconds, each longer by up to `jitter` of itself.

    They begin anew after `reset` seconds without any, as client-go's reflectors do it.
    """

    def __init__(
        self,
        first: float = 0.8,
        cap: float = 30.0,
        *,
        jitter: float = 1.0,
        reset: float = 120.0,
        rand: Callable[[], float] = random.random,
    ) -> None:
        self._first = first
        self._cap = cap
        self._jitter = jitter
        self._reset = reset
        self._rand = rand
        self._next = first
        self._last = -math.inf

    def next_delay(self, now: float) -> float:
        """Return the seconds to wait at this time."""
        if now - self._last > self._reset:
            self._next = self._first
        delay = self._next * (1 + self._jitter * self._rand())
        self._next = min(self._cap, self._next * 2)
        self._last = now + delay
        return delay

    def start_over(self) -> None:
        """Begin with the shortest wait again."""
        self._next = self._first
