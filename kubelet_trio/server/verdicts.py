"""Answers that hold for a while: what the API server said of a token or of an access.

Those who ask the same at the same time share one question.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

import trio

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")

_MOST = 4096  # entries kept: beyond it, the one longest unused goes


class Verdicts(Generic[Key, Value]):
    """A bounded cache whose entries say themselves how long they hold."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._known: OrderedDict[Key, tuple[Value, float]] = OrderedDict()
        self._asking: dict[Key, trio.Event] = {}

    async def get(self, key: Key, ask: Callable[[], Awaitable[tuple[Value, float]]]) -> Value:
        """Return what is known; `ask` returns the answer and for how many seconds it holds.

        What `ask` raises is raised and not remembered.
        """
        while True:
            known = self._known.get(key)
            if known is not None and trio.current_time() < known[1]:
                self._known.move_to_end(key)
                return known[0]
            if (asking := self._asking.get(key)) is None:
                break
            await asking.wait()
        done = self._asking[key] = trio.Event()
        try:
            value, seconds = await ask()
        finally:
            del self._asking[key]
            done.set()
        self._known[key] = (value, trio.current_time() + seconds)
        self._known.move_to_end(key)
        while len(self._known) > self._most:
            self._known.popitem(last=False)
        return value
