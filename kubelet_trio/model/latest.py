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
        self._filled, self._emptied = trio.Event(), trio.Event()  # one of them is set
        self._emptied.set()

    def put(self, value: T) -> None:
        """Put a value, replacing one that was not read yet. Never blocks."""
        with contextlib.suppress(trio.WouldBlock):  # empty: there is nothing to replace
            self._receive.receive_nowait()
        self._send.send_nowait(value)
        self._tell()

    async def wait_value(self) -> T:
        """Wait for a value, and take the newest one."""
        value = await self._receive.receive()
        self._tell()  # by then there may be another one
        return value

    def _tell(self) -> None:
        """Tell those who wait whether there is a value; a reader that waited has it already."""
        is_there = self._send.statistics().current_buffer_used > 0
        if is_there and not self._filled.is_set():
            self._emptied = trio.Event()
            self._filled.set()
        elif not is_there and not self._emptied.is_set():
            self._filled = trio.Event()
            self._emptied.set()

    async def wait_there(self) -> None:
        """Wait until there is a value to take."""
        await self._filled.wait()

    async def wait_taken(self) -> None:
        """Wait until the newest value has been taken."""
        await self._emptied.wait()
