"""One HTTP/2 stream: bytes both ways under flow control.

Tasks wait here and nowhere else. Every wait is a loop around one `ParkingLot`, every
change to h2 is made without an await in between, so a cancelled task leaves a stream
as consistent as any other; whoever opened it must `close` it, which resets what is
still open. What arrives is put in by the connection's reader.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import trio

from kubelet_trio.grpc._h2 import STREAM_WINDOW
from kubelet_trio.grpc._metadata import Headers

if TYPE_CHECKING:
    from kubelet_trio.grpc._connection import Http2Connection


class StreamLostError(Exception):
    """The stream was reset by the peer, or its connection is gone.

    `code` is RST_STREAM's error code, None for a lost connection. `unprocessed`: the
    peer has said that it never looked at this stream, so asking again is safe.
    """

    def __init__(self, message: str, *, code: int | None = None, unprocessed: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.unprocessed = unprocessed


class Http2Stream:
    """A stream of a connection; at most one task reads it, at most one writes."""

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

    def __init__(self, connection: Http2Connection, stream_id: int) -> None:
        self.id = stream_id
        self.headers: Headers | None = None  # the peer's first header block
        self.trailers: Headers | None = None  # its second
        self.ended = False  # the peer has sent everything
        self.finished = False  # we have
        self.on_lost: Callable[[], object] | None = None
        self._connection = connection
        self._changed = trio.lowlevel.ParkingLot()
        self._arrived = bytearray()
        self._wanted = 0  # how many bytes a waiting reader needs in all
        self._uncredited = 0  # received, and not yet given back to the peer's window
        self._lost: StreamLostError | None = None

    # Called by the reading side of the connection

    def feed(self, data: bytes, counted: int) -> None:
        """Take data in; `counted` is what it weighs in flow control."""
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
        self._changed.unpark_all()

    def credit(self) -> None:
        """Widen the peer's window while a reader needs more than has arrived.

        What nobody waits for stays uncredited: that is the back-pressure.
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
        """Wait until the peer has sent everything; data still to be read stays unread."""
        while not self.ended:
            self._check_lost()
            await self._changed.park()

    async def read(self, size: int) -> bytes:
        """Return exactly `size` bytes, or b"" at the end, even if fewer are left over.

        What has arrived is handed out even if the stream was lost afterwards.
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
        """Queue data as the peer's windows allow; returns at once where they do.

        Raises `StreamLostError`; returns early if the peer has ended the stream.
        """
        connection = self._connection
        rest = memoryview(data)
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
        """Queue a header block (the second one is trailers and needs `end`)."""
        self._check_lost()
        self._connection.send_headers(self, headers, end=end)

    def close(self, code: int) -> None:
        """Reset what is still open in either direction; nothing if all went its way."""
        self._connection.close_stream(self, code)

    def _check_lost(self) -> None:
        if self._lost is not None:
            raise StreamLostError(
                self._lost.message, code=self._lost.code, unprocessed=self._lost.unprocessed
            )
