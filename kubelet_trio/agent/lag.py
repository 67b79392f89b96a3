"""How long what happens has to wait for the event loop, as a histogram.

Trio looks for I/O and timers that are due, runs every task that can go on, and looks again. What
happens meanwhile waits for that long, whatever task it was that took it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import trio

from kubelet_trio.model import Meter

NAME = "kubelet_trio_event_loop_lag_seconds"
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)  # s


class _Turns(trio.abc.Instrument):
    """Measures each turn of the loop: two calls of the clock, none for each task."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._began: float | None = None

    def after_io_wait(self, timeout: float) -> None:
        self._began = trio.current_time()

    def before_io_wait(self, timeout: float) -> None:
        if self._began is not None:
            self._meter.observe(NAME, trio.current_time() - self._began, buckets=_BUCKETS)


@contextmanager
def lag_measured(meter: Meter) -> Iterator[None]:
    """Measure the loop during a block."""
    turns = _Turns(meter)
    trio.lowlevel.add_instrument(turns)
    try:
        yield
    finally:
        trio.lowlevel.remove_instrument(turns)
