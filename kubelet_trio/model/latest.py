"""A one-slot mailbox between two tasks: what is wanted now, never a queue of what was."""

from __future__ import annotations

import contextlib
from typing import Generic, TypeVar

import trio

T = TypeVar("T")


class Latest(Generic[T]):
    """A one-slot mailbox: a slow reader sees only the newest value."""

    def __init__(self) -> None:
        self._send, self._receive = trio.open_memory_channel[T](1)

    def put(self, value: T) -> None:
        """Leave a value for the reader in place of one that was not read; never blocks."""
        with contextlib.suppress(trio.WouldBlock):
            self._receive.receive_nowait()
        self._send.send_nowait(value)

    async def wait_value(self) -> T:
        """Take the newest value, waiting for one if there is none."""
        return await self._receive.receive()
