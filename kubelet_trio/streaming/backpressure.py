"""Back-pressure on a connection that still notices when the peer disconnects.

While the receiver of a connection's data does not take it, the connection is not read, and the
peer's close stays unread behind its data: a command would outlive its client for hours. So the
reader pings meanwhile.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

import trio
from trio.abc import SendStream

T = TypeVar("T")

# What Trio's streams and channels raise once the other end is closed or lost.
PEER_GONE = (trio.BrokenResourceError, trio.ClosedResourceError)

_PING_PERIOD = 10.0  # s between pings while the reader is blocked
_ROOM_LIMIT = 1.0  # s for a connection to accept a ping


async def send_or_ping(
    queue: trio.MemorySendChannel[T], item: T, ping: Callable[[], Awaitable[None]]
) -> None:
    """Put an item into a bounded queue, and ping the peer while the queue is full.

    If the queue is closed, the item is dropped. Raises what `ping` raises:
    `trio.BrokenResourceError` for a peer that has disconnected.
    """
    try:
        queue.send_nowait(item)  # the fast path: no task switch
    except PEER_GONE:
        return
    except trio.WouldBlock:
        await _send_and_ping(queue, item, ping)


async def _send_and_ping(
    queue: trio.MemorySendChannel[T], item: T, ping: Callable[[], Awaitable[None]]
) -> None:
    while True:
        with trio.move_on_after(_PING_PERIOD):
            with suppress(*PEER_GONE):
                await queue.send(item)
            return
        # The kernel of a peer that has closed answers it with a reset, and the next ping fails.
        await ping()


class Busy:
    """A context manager for what takes received data, and its pings while that takes long."""

    def __init__(self) -> None:
        self._turns = 0
        self._is_busy = False

    def __enter__(self) -> None:
        self._is_busy = True

    def __exit__(self, *exc: object) -> None:
        self._is_busy = False
        self._turns += 1

    async def ping(self, ping: Callable[[], Awaitable[None]]) -> None:
        """Ping while one turn goes on; return once the peer has disconnected."""
        with suppress(*PEER_GONE):
            while True:
                before = self._turns
                await trio.sleep(_PING_PERIOD)
                if self._is_busy and self._turns == before:
                    await ping()


class Sending:
    """A lock for what sends. Taking it while it is free is no checkpoint: the send that follows is.

    With `trio.Lock` alone each frame would take one more turn of the scheduler.
    """

    def __init__(self) -> None:
        self._lock = trio.Lock()

    async def __aenter__(self) -> None:
        try:
            self._lock.acquire_nowait()
        except trio.WouldBlock:
            await self._lock.acquire()

    async def __aexit__(self, *exc: object) -> None:
        self._lock.release()

    def locked(self) -> bool:
        return self._lock.locked()


async def send_ping(connection: SendStream, sending: Sending, frame: bytes) -> None:
    """Send a ping if the connection accepts it at once. Raises `trio.BrokenResourceError`.

    A ping that blocks would block the reader, even when the queue has room again.
    """
    # If another task is sending, that send fails once the peer has disconnected.
    if sending.locked():
        return
    # Held meanwhile: Trio refuses a send beside the wait, which would end the stream.
    async with sending:
        with trio.move_on_after(_ROOM_LIMIT) as wait:
            await connection.wait_send_all_might_not_block()
        if not wait.cancelled_caught:
            await connection.send_all(frame)
