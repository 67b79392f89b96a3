"""How many pulls may begin."""

from __future__ import annotations

import math


class PullRate:
    """Limits pulls by a token bucket: a pull that finds no token fails, it does not wait.

    Upstream: throttleImagePulling.
    """

    def __init__(self, qps: float = 0, burst: int = 1) -> None:
        """Start with a full bucket.

        Args:
            qps: `registryPullQPS`: tokens added each second; 0: no limit.
            burst: `registryBurst`: tokens that the bucket holds.
        """
        self._qps, self._burst = qps, burst
        self._full_at = -math.inf  # when the bucket is full again

    def try_take(self, now: float) -> bool:
        """Take a token if there is one; `now` is the time of any monotonic clock."""
        if not self._qps:
            return True
        full_at = max(self._full_at, now) + 1 / self._qps
        # 1e-9: sums of floats are rounded, and exactly `burst` pulls at one instant must pass.
        if full_at - now > self._burst / self._qps + 1e-9:
            return False
        self._full_at = full_at
        return True
