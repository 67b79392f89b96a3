"""Wall time, injectable. Monotonic time is always `trio.current_time()`."""

from __future__ import annotations

import datetime
import time
from typing import Protocol


class WallClock(Protocol):
    """Where wall time comes from: API timestamps and ages, never deadlines."""

    def time(self) -> float:
        """Return seconds since the Unix epoch."""
        ...


class SystemClock:
    """The machine's own wall clock."""

    def time(self) -> float:
        return time.time()


def rfc3339(seconds: float) -> str:
    """Format Unix seconds as the API's `Time`: UTC, whole seconds, `Z`."""
    return datetime.datetime.fromtimestamp(int(seconds), datetime.UTC).strftime(
        "%Y-%m-%dT%H:%M:%SZ"
    )


def to_datetime(seconds: float) -> datetime.datetime:
    """Return Unix seconds as the aware, whole-second datetime that API models carry."""
    return datetime.datetime.fromtimestamp(int(seconds), datetime.UTC)
