"""A wake-up that cannot be lost and does not pile up.

A supervisor acts on the state of its children and is only woken by a ring; so any number
of rings before it looks are one.
"""

from __future__ import annotations

import trio


class Bell:
    """Rung from anywhere, waited for by one task."""

    __slots__ = ("_rung",)

    def __init__(self) -> None:
        self._rung = trio.Event()

    def ring(self) -> None:
        """Wake the waiter, or let its next wait return at once."""
        self._rung.set()

    async def wait_ring(self) -> None:
        """Wait for a ring since the last return of this call."""
        await self._rung.wait()
        self._rung = trio.Event()
