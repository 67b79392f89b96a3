"""Let others run during what is long: many tasks woken at once, or a computation over many things.

Trio runs all tasks that can go on before it looks for I/O and timers again, and cannot interrupt
one. So hundreds of short steps hold the loop for as long as one long step.
"""

from __future__ import annotations

import trio

_AT_ONCE = 4  # steps of half a millisecond to one


class Turnstile:
    """Lets a limited number of tasks pass in each turn of the loop, the first come first."""

    __slots__ = ("_leader", "_limit", "_lot", "_passed")

    def __init__(self, limit: int = _AT_ONCE) -> None:
        self._limit = limit
        self._passed = 0
        self._lot = trio.lowlevel.ParkingLot()
        self._leader: trio.lowlevel.Task | None = None  # lets the next ones pass when it goes on

    async def enter(self) -> None:
        """Pass, at once if few others do."""
        task = trio.lowlevel.current_task()
        if self._leader is not None:
            await self._lot.park()
            if self._leader is task:
                self._let_pass()
            return
        self._passed += 1
        if self._passed < self._limit:
            return
        self._passed, self._leader = 0, task
        try:
            await trio.lowlevel.checkpoint()
        finally:
            self._let_pass()

    def _let_pass(self) -> None:
        # They go on in the next turn, and the last of them lets more pass.
        tasks = self._lot.unpark(count=self._limit)
        self._leader = tasks[-1] if tasks else None


class Slices:
    """A checkpoint after every `size` steps of a loop; none in a loop of fewer."""

    __slots__ = ("_left", "_size")

    def __init__(self, size: int) -> None:
        self._size = self._left = size

    async def step(self) -> None:
        """Call before each step."""
        if self._left == 0:
            self._left = self._size
            await trio.lowlevel.checkpoint()
        self._left -= 1
