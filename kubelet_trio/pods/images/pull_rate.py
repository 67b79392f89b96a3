"""How many image pulls may begin: `registryBurst` at once, `registryPullQPS` a second after."""

from __future__ import annotations

import math


class PullRate:
    """A bucket of tokens, one a pull. A pull that finds none is refused and does not wait."""

    def __init__(self, qps: float = 0, burst: int = 1) -> None:
        """Args:
        qps: tokens that come a second; 0 is no limit.
        burst: tokens that the bucket holds, full at first.
        """
        self._qps, self._burst = qps, burst
        self._full_at = -math.inf  # when the bucket is full again

    def try_take(self, now: float) -> bool:
        """Take a token if there is one; `now` is any clock's that never goes back."""
        if not self._qps:
            return True
        full_at = max(self._full_at, now) + 1 / self._qps
        if full_at - now > self._burst / self._qps + 1e-9:
            return False
        self._full_at = full_at
        return True
