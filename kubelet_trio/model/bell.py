"""A wake-up that is never lost and does not pile up.

The waiting task reads state and acts on it; a ring only means that the state may have changed.
Any number of rings before it reads the state therefore count as one.
"""

from __future__ import annotations

import trio


class Bell:
    """Any code in the Trio thread may ring it; one task waits for it."""

    # The event exists only from a wait on: every pod has several bells, and an event is 500 bytes.
    __slots__ = ("_is_rung", "_waiting")

    def __init__(self) -> None:
        self._is_rung = False
        self._waiting: trio.Event | None = None

    def ring(self) -> None:
        """Wake the waiter, or let its next wait return at once. Never blocks."""
        self._is_rung = True
        if self._waiting is not None:
            self._waiting.set()
            self._waiting = None

    def clear(self) -> None:
        """Forget earlier rings: the caller is about to read what they announced."""
        self._is_rung = False

    async def wait_ring(self) -> None:
        """Wait for a ring since the last `clear` or return of this call."""
        if self._is_rung:
            await trio.lowlevel.checkpoint()
        else:
            # A cancelled waiter leaves its event to the next: that may wait already.
            if self._waiting is None:
                self._waiting = trio.Event()
            await self._waiting.wait()
        # Before the caller reads the state: a ring during that read must not be lost.
        self._is_rung = False
