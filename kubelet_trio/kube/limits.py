"""The client's rate limit."""

from __future__ import annotations

import math

import trio


class TokenBucket:
    """A token bucket: `burst` requests at once, then `qps` a second, in order of arrival.

    As in client-go, 0 means its defaults of 5 and 10, and a negative rate means no limit.
    """

    def __init__(self, qps: float = 50.0, burst: int = 100) -> None:
        self._rate = math.inf if qps < 0 else qps or 5.0
        self._burst = burst if burst > 0 else 10
        self._full_at = -math.inf  # trio's time when the bucket is full again
        self._turn = trio.Lock()

    async def take(self) -> float:
        """Wait for a token and return the waiting time in seconds.

        A cancelled caller takes no token, as in golang.org/x/time/rate.
        """
        if math.isinf(self._rate):
            return 0.0
        began = trio.current_time()
        async with self._turn:  # trio.Lock is fair: first come, first served
            now = trio.current_time()
            if (delay := self._wait(now)) > 0:
                await trio.sleep(delay)
            # After the sleep: a cancelled caller takes no token.
            self._full_at = max(self._full_at, now + delay) + 1 / self._rate
        return trio.current_time() - began

    def _wait(self, now: float) -> float:
        """Return the seconds until the next token."""
        return max(0.0, max(self._full_at, now) + (1 - self._burst) / self._rate - now)
