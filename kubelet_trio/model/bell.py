"""A wake-up that is never lost and does not pile up.

The waiting task reads state and acts on it; a ring only means that the state may have changed.
Any number of rings before it reads the state therefore count as one.
"""

from __future__ import annotations

import trio


class Bell:
    """Any code in the Trio thread may ring it; one task waits for it."""

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
        # Before the caller reads the state: a ring during that read must not be lost.
        self._rung = trio.Event()
