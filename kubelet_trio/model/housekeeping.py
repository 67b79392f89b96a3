"""A round of cleaning up that takes too long: said in the log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import trio

from kubelet_trio.model.logger import get_logger

log = get_logger()

# Seconds that a round may take; they come once a minute. (The Go kubelet's: 1 s of every 2 s.)
EXPECTED = 10.0


@contextmanager
def housekeeping_round(what: str) -> Iterator[None]:
    """Time a round, and log a warning if it takes longer than expected."""
    began = trio.current_time()
    yield
    took = trio.current_time() - began
    if took > EXPECTED:
        log.warning("housekeeping.slow", what=what, seconds=round(took, 1), expected=EXPECTED)
