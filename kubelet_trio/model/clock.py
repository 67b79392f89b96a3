"""Wall time, injectable, and the time of housekeeping rounds.

Monotonic time is always `trio.current_time()`.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import trio

from kubelet_trio.model.logger import get_logger

log = get_logger()

# Seconds that a round may take; rounds start once a minute. (The Go kubelet: 1 s of every 2 s.)
_EXPECTED = 10.0


class WallClock(Protocol):
    """A source of wall time, for API timestamps and ages; never for deadlines."""

    def time(self) -> float:
        """Return seconds since the Unix epoch."""
        ...


class SystemClock:
    """The machine's wall clock."""

    def time(self) -> float:
        return time.time()


def rfc3339(seconds: float) -> str:
    """Format Unix seconds as the API's `Time`: UTC, whole seconds, `Z`."""
    return datetime.datetime.fromtimestamp(int(seconds), datetime.UTC).strftime(
        "%Y-%m-%dT%H:%M:%SZ"
    )


def to_datetime(seconds: float) -> datetime.datetime:
    """Return Unix seconds as an aware datetime of whole seconds, as in API models."""
    return datetime.datetime.fromtimestamp(int(seconds), datetime.UTC)


@contextmanager
def housekeeping_round(what: str) -> Iterator[None]:
    """Measure a round of cleaning up, and log a warning if it takes too long."""
    began = trio.current_time()
    yield
    took = trio.current_time() - began
    if took > _EXPECTED:
        log.warning("housekeeping.slow", what=what, seconds=round(took, 1), expected=_EXPECTED)
