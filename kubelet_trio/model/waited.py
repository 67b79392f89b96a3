"""An event and a value to wait for, which cost next to nothing while nobody waits.

Every pod has several of them, and nearly always none is waited for. An event of Trio is 270 bytes,
a value of trio_util 1.8 KB.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import trio

T = TypeVar("T")


class LateEvent:
    """A `trio.Event` that is only made when somebody waits for it."""

    __slots__ = ("_is_set", "_waiting")

    def __init__(self) -> None:
        self._is_set = False
        self._waiting: trio.Event | None = None

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        """Let all who wait go on, now and later. Never blocks."""
        self._is_set = True
        if self._waiting is not None:
            self._waiting.set()
            self._waiting = None

    async def wait(self) -> None:
        """Wait until it is set."""
        if self._is_set:
            await trio.lowlevel.checkpoint()
            return
        if self._waiting is None:
            self._waiting = trio.Event()
        await self._waiting.wait()


class Waited(Generic[T]):
    """A value to wait for; what it was between two looks of a waiter does not matter."""

    __slots__ = ("_changed", "_value")

    def __init__(self, value: T) -> None:
        self._value = value
        self._changed: trio.Event | None = None

    @property
    def value(self) -> T:
        return self._value

    @value.setter
    def value(self, value: T) -> None:
        self._value = value
        if self._changed is not None:
            self._changed.set()
            self._changed = None

    async def wait_value(self, is_wanted: Callable[[T], bool]) -> T:
        """Wait until the value is a wanted one, and return it."""
        if is_wanted(self._value):
            await trio.lowlevel.checkpoint()
        while not is_wanted(self._value):
            if self._changed is None:
                self._changed = trio.Event()
            await self._changed.wait()
        return self._value
