"""A wake-up that is never lost and does not pile up.

The task that waits reads state and acts on it; a ring only says that the state may have changed.
So any number of rings before it looks are one.
"""

from __future__ import annotations

import trio


class Bell:
    """Rung from anywhere in the Trio thread, waited for by one task."""

    __slots__ = ("_rung",)

    def __init__(self) -> None:
        self._rung = trio.Event()

    def ring(self) -> None:
        """Wake the waiter, or let its next wait return at once. Never blocks."""
        self._rung.set()

    def clear(self) -> None:
        """Forget earlier rings: the caller is about to read what they announced."""
        if self._rung.is_set():  # else a waiter may hold this very event
            self._rung = trio.Event()

    async def wait_ring(self) -> None:
        """Wait for a ring since the last `clear` or return of this call."""
        await self._rung.wait()
        self._rung = trio.Event()
