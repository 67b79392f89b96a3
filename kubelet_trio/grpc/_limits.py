"""Limits of a server: what its clients may take of this process, all together.

The defaults are those of a client and a server that trust each other, as this agent and its runtime
do. A server whose clients may be buggy or hostile sets its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import trio

from kubelet_trio.grpc._h2 import MAX_STREAMS, STREAM_WINDOW

FLOODED = 1 << 24  # queued bytes from which on the peer evidently sends requests and never reads


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """The limits of one server.

    Attributes:
        connections: at a time; one more ends the one that has been without a call for longest,
            and is refused while all have calls. None: no limit.
        streams: calls of one connection at a time.
        stream_window: bytes of a call that may arrive before its handler reads them.
        queued_bytes: of replies that one connection does not read, before it is ended.
        request_bytes: of one request; None: as replies.
        calls: unary calls at a time, of all connections; one more gets RESOURCE_EXHAUSTED.
        call_seconds: for a unary call, with its request sent and its reply read.
        qps: unary calls a second, of all connections; 0: no limit.
        burst: unary calls at one moment, if `qps` is set.
    """

    connections: int | None = None
    streams: int = MAX_STREAMS
    stream_window: int = STREAM_WINDOW
    queued_bytes: int = FLOODED
    request_bytes: int | None = None
    calls: int | None = None
    call_seconds: float = float("inf")
    qps: float = 0
    burst: int = 1


class RateLimit:
    """A token bucket that never waits, as Allow of golang.org/x/time/rate."""

    def __init__(self, qps: float, burst: int) -> None:
        """Take tokens a second (0: no limit), and how many it holds."""
        self._qps = qps
        self._burst = burst
        self._tokens = float(burst)
        self._at: float | None = None  # trio time of `_tokens`

    def allow(self) -> bool:
        """Take a token; False if there is none."""
        if not self._qps:
            return True
        now = trio.current_time()
        if self._at is not None:
            self._tokens = min(self._burst, self._tokens + (now - self._at) * self._qps)
        self._at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True
