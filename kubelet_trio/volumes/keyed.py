"""Locks by name: one operation at a time on a volume, whichever pods it is for."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trio


@dataclass(slots=True)
class _Entry:
    lock: trio.Lock = field(default_factory=trio.Lock)
    tasks: int = 0  # that hold it or wait for it


@dataclass(slots=True)
class KeyedLocks:
    """A lock for each key that a task holds or waits for; others take no memory."""

    _entries: dict[str, _Entry] = field(default_factory=dict)

    @asynccontextmanager
    async def hold(self, key: str) -> AsyncIterator[None]:
        """Hold the lock of a key while the block runs. Not reentrant."""
        entry = self._entries.setdefault(key, _Entry())
        entry.tasks += 1
        try:
            async with entry.lock:
                yield
        finally:
            entry.tasks -= 1
            if not entry.tasks:
                del self._entries[key]

    def is_held(self, key: str) -> bool:
        """Whether a task holds the lock of a key or waits for it."""
        return key in self._entries
