"""One HTTP/2 stream: bytes in both directions under flow control.

The connection's reader puts in what arrives; tasks wait here for it. Every wait is a loop around
one `ParkingLot`, and no change to h2 has an await in between, so a cancelled task leaves the
stream consistent. The task that opened a stream must `close` it, which resets it if it is open.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import trio

from kubelet_trio.grpc._h2 import STREAM_WINDOW
from kubelet_trio.grpc._metadata import Headers


class StreamLostError(Exception):
    """The peer reset the stream, or its connection is lost.

    `code` is RST_STREAM's error code, None for a lost connection. `unprocessed`: the peer
    declared that it did not process this stream, so a retry is safe.
    """

    def __init__(self, message: str, *, code: int | None = None, unprocessed: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.unprocessed = unprocessed


class StreamConnection(Protocol):
    """What a stream needs of its connection. No method but `wait_drained` blocks."""

    @property
    def client(self) -> bool:
        """Whether we are the client of this connection."""
        ...

    @property
    def is_congested(self) -> bool:
        """Whether so much is queued that senders of data must wait."""
        ...

    async def wait_drained(self) -> None:
        """Wait until the writer has sent what was queued, or the connection is gone."""
        ...

    def send_room(self, stream_id: int) -> int:
        """Return how many bytes of data may be queued for a stream in one frame now."""
        ...

    def send_data(self, stream: Http2Stream, data: memoryview, *, end: bool) -> None:
        """Queue a frame of data."""
        ...

    def send_headers(self, stream: Http2Stream, headers: Headers, *, end: bool) -> None:
        """Queue a header block."""
        ...

    def widen_window(self, amount: int, stream_id: int | None = None) -> None:
        """Let the peer send `amount` bytes more, on a stream or on the connection."""
        ...

    def close_stream(self, stream: Http2Stream, code: int) -> None:
        """Reset a stream that has not ended in both directions; otherwise do nothing."""
        ...


class Http2Stream:
    """A stream of a connection. At most one task reads it, at most one writes."""

    __slots__ = (
        "_arrived",
        "_changed",
        "_connection",
        "_lost",
        "_uncredited",
        "_wanted",
        "ended",
        "finished",
        "headers",
        "id",
        "on_lost",
        "trailers",
    )

    def __init__(self, connection: StreamConnection, stream_id: int) -> None:
        self.id = stream_id
        self.headers: Headers | None = None  # the peer's first header block
        self.trailers: Headers | None = None  # its second
        self.ended = False  # the peer has sent everything
        self.finished = False  # we have sent everything
        self.on_lost: Callable[[], object] | None = None
        self._connection = connection
        self._changed = trio.lowlevel.ParkingLot()
        self._arrived = bytearray()
        self._wanted = 0  # bytes that a waiting reader needs in all
        self._uncredited = 0  # bytes received and not yet given back to the peer's window
        self._lost: StreamLostError | None = None

    # Called by the reading side of the connection

    def feed(self, data: bytes, counted: int) -> None:
        """Add received data; `counted` is its size in flow control, padding included."""
        self._arrived += data
        self._uncredited += counted

    def lose(self, error: StreamLostError) -> None:
        """Fail every wait on this stream from now on."""
        if self._lost is None:
            self._lost = error
            if self.on_lost is not None and not (self.ended and self.finished):
                self.on_lost()
        self.wake()

    def wake(self) -> None:
        if self._changed:  # most calls find nobody there: an answer is several events
            self._changed.unpark_all()

    def credit(self) -> None:
        """Widen the peer's window while a reader waits for more than has arrived.

        Data that no task waits for stays uncredited: that is the back-pressure.
        """
        if (
            self._wanted > len(self._arrived)
            and self._uncredited >= STREAM_WINDOW // 4
            and not self.ended
            and self._lost is None
        ):
            self._connection.widen_window(self._uncredited, self.id)
            self._uncredited = 0

    # Called by tasks

    @property
    def lost(self) -> bool:
        return self._lost is not None

    async def wait_headers(self) -> Headers:
        """Wait for the peer's first header block."""
        while self.headers is None:
            self._check_lost()
            await self._changed.park()
        return self.headers

    async def wait_end(self) -> None:
        """Wait until the peer has sent everything; unread data stays unread."""
        while not self.ended:
            self._check_lost()
            await self._changed.park()

    async def read(self, size: int) -> bytes:
        """Return exactly `size` bytes, or b"" at the end, even if fewer are left.

        Data that arrived before the stream was lost is still returned. Raises `StreamLostError`.
        """
        arrived = self._arrived
        if len(arrived) < size:
            self._wanted = size
            try:
                while len(arrived) < size and not self.ended:
                    self._check_lost()
                    self.credit()
                    await self._changed.park()
            finally:
                self._wanted = 0
            if len(arrived) < size:
                return b""
        data = bytes(memoryview(arrived)[:size])
        del arrived[:size]
        return data

    async def send(self, data: bytes, *, end: bool = False) -> None:
        """Queue data as the peer's windows allow.

        Returns early if the peer has ended the stream. Raises `StreamLostError`.
        """
        connection = self._connection
        rest = memoryview(data)
        # A server that has ended the stream ignores what its client still sends, RFC 9113, 8.1.
        while not (self.finished or (self.ended and connection.client)):
            self._check_lost()
            room = connection.send_room(self.id)
            if len(rest) <= room:
                connection.send_data(self, rest, end=end)
                return
            if room:
                connection.send_data(self, rest[:room], end=False)
                rest = rest[room:]
            elif connection.is_congested:
                await connection.wait_drained()
            else:
                await self._changed.park()

    def send_headers(self, headers: Headers, *, end: bool = False) -> None:
        """Queue a header block; a second one is the trailers and needs `end`.

        Raises `StreamLostError`.
        """
        self._check_lost()
        self._connection.send_headers(self, headers, end=end)

    def close(self, code: int) -> None:
        """Reset the stream unless it has ended in both directions."""
        self._connection.close_stream(self, code)

    def _check_lost(self) -> None:
        if self._lost is not None:
            # A new one for each waiter: a raised exception collects tracebacks.
            raise StreamLostError(
                self._lost.message, code=self._lost.code, unprocessed=self._lost.unprocessed
            )
