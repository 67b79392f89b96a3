"""Limits the calls in flight without being blocked by those that hang."""

from __future__ import annotations

import trio

CALLS_AT_ONCE = 16
COUNTED_FOR = 0.25  # s; a healthy runtime answers a query within a few hundredths of it


class CallSlots:
    """Lets calls begin in the order in which they were asked for, a limited number at a time.

    The limit keeps a first relist from sending all its queries at once. Calls that hang must not
    block the others, so a call counts for `COUNTED_FOR` seconds at most.
    """

    def __init__(self, limit: int = CALLS_AT_ONCE) -> None:
        self._limit = limit
        self._counted: dict[CallSlot, float] = {}  # when each call began, the oldest first
        self._first = trio.Lock()  # held by whoever is next; the others queue for it
        self._freed = trio.lowlevel.ParkingLot()

    async def take(self) -> CallSlot:
        """Return a slot as soon as there is one. It counts from now on; enter it for the call."""
        if not self._first.locked() and self._has_room():
            return self._begun()
        async with self._first:
            while not self._has_room():
                oldest = next(iter(self._counted.values()))
                with trio.move_on_at(oldest + COUNTED_FOR):
                    await self._freed.park()
            return self._begun()

    def _has_room(self) -> bool:
        now = trio.current_time()
        while self._counted and next(iter(self._counted.values())) + COUNTED_FOR <= now:
            del self._counted[next(iter(self._counted))]
        return len(self._counted) < self._limit

    def _begun(self) -> CallSlot:
        slot = CallSlot(self)
        self._counted[slot] = trio.current_time()
        return slot

    def give_back(self, slot: CallSlot) -> None:
        if self._counted.pop(slot, None) is not None:
            self._freed.unpark()


class CallSlot:
    """A context manager for one call; its end gives the slot back."""

    __slots__ = ("_slots",)

    def __init__(self, slots: CallSlots) -> None:
        self._slots = slots

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exc_info: object) -> None:
        self._slots.give_back(self)
