"""A one-slot mailbox between two tasks: holds the newest value, never a queue."""

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
        """Put a value, replacing one that was not read yet. Never blocks."""
        with contextlib.suppress(trio.WouldBlock):  # empty: there is nothing to replace
            self._receive.receive_nowait()
        self._send.send_nowait(value)

    async def wait_value(self) -> T:
        """Wait for a value, and take the newest one."""
        return await self._receive.receive()
