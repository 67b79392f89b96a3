"""A stream that is ended when nothing has travelled for too long."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import trio
from trio.abc import HalfCloseableStream

from kubelet_trio.model import get_logger

log = get_logger()


@contextmanager
def watched(stream: HalfCloseableStream, idle: float) -> Iterator[HalfCloseableStream]:
    """Cancel the block when neither side has sent a byte for `idle` seconds; 0 is no limit."""
    with trio.CancelScope() as scope:
        noted = _Watched(stream, scope, idle or float("inf"))
        noted.note()
        yield noted
    if scope.cancelled_caught:
        log.info("stream.idle", seconds=idle)


class _Watched(HalfCloseableStream):
    """Passes everything on, and moves the deadline of a scope."""

    def __init__(self, stream: HalfCloseableStream, scope: trio.CancelScope, idle: float) -> None:
        self._stream, self._scope, self._idle = stream, scope, idle

    def note(self) -> None:
        self._scope.deadline = trio.current_time() + self._idle

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        data = await self._stream.receive_some(max_bytes)
        self.note()
        return data

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._stream.send_all(data)
        self.note()

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def aclose(self) -> None:
        await self._stream.aclose()
