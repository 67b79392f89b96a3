"""A reader that is held up still notices that its peer has gone.

Whoever reads a connection hands on what comes. While the receiver takes nothing, the connection is
not read, and the peer's good-bye waits unread behind its data: a command would outlive its client
for hours. A ping waits behind nothing: the kernel of a peer that has closed answers it with a
reset, and the next ping fails.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

import trio
from trio.abc import SendStream

T = TypeVar("T")

_PING_PERIOD = 10.0  # s between pings of a peer whose reader is held up
_CLOSED = (trio.BrokenResourceError, trio.ClosedResourceError)  # an end of the queue
_ROOM_LIMIT = 1.0  # s for a connection to take a ping; one that takes none is being written to


async def hand_on(
    queue: trio.MemorySendChannel[T], item: T, ping: Callable[[], Awaitable[None]]
) -> None:
    """Put an item into a bounded queue; ping the peer while the queue is full.

    An item that nobody will receive any more is dropped. Raises what `ping` raises:
    `trio.BrokenResourceError` for a peer that has gone.
    """
    with suppress(trio.WouldBlock):
        with suppress(*_CLOSED):
            queue.send_nowait(item)  # no switch of tasks for every item
        return
    while True:
        with trio.move_on_after(_PING_PERIOD):
            with suppress(*_CLOSED):
                await queue.send(item)
            return
        await ping()


async def send_ping(connection: SendStream, sending: trio.Lock, frame: bytes) -> None:
    """Send a ping if the connection takes it at once. Raises `trio.BrokenResourceError`.

    A ping that blocked would hold up its reader for longer than the queue does. Where another
    task sends, its own failure tells that the peer has gone.
    """
    if sending.locked():
        return
    with trio.move_on_after(_ROOM_LIMIT) as wait:
        await connection.wait_send_all_might_not_block()
    if wait.cancelled_caught or sending.locked():
        return
    async with sending:
        await connection.send_all(frame)
