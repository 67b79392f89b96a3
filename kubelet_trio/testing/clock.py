"""Wall time that follows virtual time: an epoch plus trio's clock.

Under `trio.testing.MockClock` timestamps, ages and back-offs then agree with the sleeps
of the run. `step` changes only wall time, as NTP or `date -s` does.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

EPOCH = 1_767_225_600.0  # 2026-01-01T00:00:00Z


class TrioClock:
    """A `WallClock` on trio's time."""

    def __init__(self, epoch: float = EPOCH, now: Callable[[], float] = trio.current_time) -> None:
        """Count from `epoch` (Unix seconds).

        Args:
            epoch: wall time at monotonic time zero.
            now: monotonic seconds; give a `MockClock.current_time` to read the clock
                from outside a trio run.
        """
        self._epoch = epoch
        self._now = now

    def time(self) -> float:
        """Return Unix seconds."""
        return self._epoch + self._now()

    def step(self, seconds: float) -> None:
        """Set wall time forward, or back if negative; monotonic time does not change."""
        self._epoch += seconds
