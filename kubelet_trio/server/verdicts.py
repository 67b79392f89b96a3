"""Answers that hold for a while: what the API server said of a token or of an access.

Those who ask the same at the same time share one question. How many questions are under way is
bounded, in all and for one address: tokens cost a stranger nothing to invent.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

import trio

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")

_MOST = 4096  # entries kept: beyond it, the one longest unused goes
_UNDER_WAY = 64
_PER_SOURCE = 16
RETRY_AFTER = "1"  # seconds, for whoever came when too much was being asked


class BusyError(Exception):
    """As much is being asked as may be at one time."""


class Verdicts(Generic[Key, Value]):
    """A bounded cache whose entries say themselves how long they hold."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._known: OrderedDict[Key, tuple[Value, float]] = OrderedDict()
        self._asking: dict[Key, trio.Event] = {}
        self._sources: Counter[str] = Counter()  # of what is being asked

    async def get(
        self, key: Key, ask: Callable[[], Awaitable[tuple[Value, float]]], source: str = ""
    ) -> Value:
        """Return what is known; `ask` returns the answer and for how many seconds it holds.

        `source` is the address that the question comes from. What `ask` raises is raised and not
        remembered. Raises `BusyError` at once where too much is being asked already, but for a key
        that had a yes before. Whoever is cancelled makes room.
        """
        while True:
            known = self._known.get(key)
            if known is not None and trio.current_time() < known[1]:
                self._known.move_to_end(key)
                return known[0]
            if (asking := self._asking.get(key)) is None:
                break
            await asking.wait()
        is_full = len(self._asking) >= _UNDER_WAY
        is_full |= bool(source) and self._sources[source] >= _PER_SOURCE
        if is_full and not (known and known[0]):
            raise BusyError("too many reviews are under way")
        done = self._asking[key] = trio.Event()
        self._sources[source] += 1
        try:
            value, seconds = await ask()
        finally:
            del self._asking[key]
            self._sources[source] -= 1
            self._sources += Counter()  # forgets those that ask nothing now
            done.set()
        self._known[key] = (value, trio.current_time() + seconds)
        self._known.move_to_end(key)
        while len(self._known) > self._most:
            self._known.popitem(last=False)
        return value
