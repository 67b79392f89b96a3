"""A cache of the API server's reviews of tokens and of accesses.

Concurrent lookups of one key share one review. The number of reviews in flight is limited, in
total and per client address: inventing tokens costs a stranger nothing.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

import trio

from kubelet_trio.server.errors import BusyError

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")

_MAX_ENTRIES = 4096  # beyond it, the least recently used is dropped
_MAX_IN_FLIGHT = 64
_MAX_PER_SOURCE = 16
RETRY_AFTER = "1"  # seconds, for clients that were refused with `BusyError`


class Verdicts(Generic[Key, Value]):
    """A bounded cache; each entry has its own time to live."""

    def __init__(self, max_entries: int = _MAX_ENTRIES) -> None:
        self._max_entries = max_entries
        self._known: OrderedDict[Key, tuple[Value, float]] = OrderedDict()
        self._in_flight: dict[Key, trio.Event] = {}
        self._sources: Counter[str] = Counter()  # of the reviews in flight

    async def get(
        self, key: Key, ask: Callable[[], Awaitable[tuple[Value, float]]], source: str = ""
    ) -> Value:
        """Return the cached answer, or else the one that `ask` gets.

        Args:
            key: what is reviewed.
            ask: returns the answer and its time to live in seconds. Its errors are raised and
                not cached.
            source: the client's address.

        Raises:
            BusyError: too many reviews are in flight, and the last answer for this key, if any,
                was not positive.
        """
        while True:
            known = self._known.get(key)
            # Looked up again after each wait: another task may have asked for this key.
            if known is not None and trio.current_time() < known[1]:
                self._known.move_to_end(key)
                return known[0]
            if (running := self._in_flight.get(key)) is None:
                break
            await running.wait()
        is_full = len(self._in_flight) >= _MAX_IN_FLIGHT
        is_full |= bool(source) and self._sources[source] >= _MAX_PER_SOURCE
        # Clients that were let in before are exempt: a flood of invented tokens must not lock
        # the API server out when its entry expires.
        if is_full and not (known and known[0]):
            raise BusyError("too many reviews are in flight")
        done = self._in_flight[key] = trio.Event()
        self._sources[source] += 1
        try:
            value, seconds = await ask()
        finally:
            del self._in_flight[key]
            self._sources[source] -= 1
            self._sources += Counter()  # in-place addition drops the counts that are zero
            done.set()
        self._known[key] = (value, trio.current_time() + seconds)
        self._known.move_to_end(key)
        while len(self._known) > self._max_entries:
            self._known.popitem(last=False)
        return value
