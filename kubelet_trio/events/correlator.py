"""Which events reach an API server, and as what: aggregation, spam limits, counting. Pure.

An occurrence passes three stages, as in client-go's EventCorrelator:

1. Ten different messages of one reason about one object within ten minutes become one event
   whose message begins with `(combined from similar events): `.
2. What was told before is counted: one event on the server, patched.
3. An object has 25 events at once and one more every five minutes; beyond that its repeated
   events are dropped.

One difference: what was never told of an object is told even then. A probe that fails every
second would otherwise hide that its container is stopped. The first stage bounds how many those
are.

Time is given (Unix seconds), state is bounded: of each stage the 4096 keys used last.
Source: tools/record/events_cache.go.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from kubelet_trio.model import Event, ObjectRef

_CACHED = 4096
_SIMILAR = 10  # distinct messages from which on they are one
_SIMILAR_WINDOW = 600.0  # seconds since the last of them
_BURST = 25
_REFILL = 300.0  # seconds for one more
PREFIX = "(combined from similar events): "

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class _Lru(Generic[K, V]):
    """The last `_CACHED` keys."""

    def __init__(self) -> None:
        self._items: OrderedDict[K, V] = OrderedDict()

    def get(self, key: K) -> V | None:
        return self._items.get(key)

    def put(self, key: K, value: V) -> None:
        self._items[key] = value
        self._items.move_to_end(key)
        if len(self._items) > _CACHED:
            self._items.popitem(last=False)


Key = tuple[ObjectRef, str, str, str]  # of one event on the server


@dataclass(frozen=True, slots=True)
class Told:
    """One event on the server: create it where `count` is 1, else patch it."""

    key: Key
    name: str
    event: Event  # the last occurrence, with the message to show
    count: int
    first: float  # Unix seconds


@dataclass(frozen=True, slots=True)
class _Similar:
    messages: frozenset[str]
    last: float


@dataclass(frozen=True, slots=True)
class _Bucket:
    tokens: float
    at: float


class Correlator:
    """See the module. One writer: whoever sends the events."""

    def __init__(self) -> None:
        self._similar: _Lru[tuple[ObjectRef, str, str], _Similar] = _Lru()
        self._told: _Lru[Key, Told] = _Lru()
        self._buckets: _Lru[ObjectRef, _Bucket] = _Lru()
        self._last_name = 0

    def correlate(self, event: Event) -> Told | None:
        """Take in one occurrence; return what to tell of it, None if it is dropped."""
        event, key = self._aggregate(event)
        before = self._told.get(key)
        if before is None:
            told = Told(key, self._name(event), event, 1, event.time)
        else:
            told = replace(before, event=event, count=before.count + 1)
        # Counted even if it is dropped, so that the next one that passes tells of all.
        self._told.put(key, told)
        is_accepted = self._accept(event)
        return told if is_accepted or before is None else None

    def forget(self, key: Key) -> Told | None:
        """The server has no such event any more: what is left of it is told as a new one."""
        told = self._told.get(key)
        if told is None:
            return None
        anew = replace(told, name=self._name(told.event), count=1, first=told.event.time)
        self._told.put(key, anew)
        return anew

    def _name(self, event: Event) -> str:
        """Name an event by the time in nanoseconds, as upstream, and no two the same."""
        stamp = int(event.time * 10**9)
        self._last_name = stamp if stamp > self._last_name else self._last_name + 1
        return f"{event.involved.name}.{self._last_name:x}"

    def _aggregate(self, event: Event) -> tuple[Event, Key]:
        involved = replace(event.involved, field_path="")
        group = (involved, event.type, event.reason)
        before = self._similar.get(group)
        if before is None or event.time - before.last > _SIMILAR_WINDOW:
            before = _Similar(frozenset(), event.time)
        messages = before.messages | {event.message}
        if len(messages) < _SIMILAR:
            self._similar.put(group, _Similar(messages, event.time))
            return event, (event.involved, event.type, event.reason, event.message)
        # Kept one short of the limit: the next one, whatever it says, is combined too.
        self._similar.put(group, _Similar(frozenset([*messages][: _SIMILAR - 1]), event.time))
        return replace(event, message=PREFIX + event.message), (*group, "")

    def _accept(self, event: Event) -> bool:
        source = replace(event.involved, field_path="")
        bucket = self._buckets.get(source) or _Bucket(_BURST, event.time)
        # A clock set back must not take tokens away.
        passed = max(0.0, event.time - bucket.at)
        tokens = min(float(_BURST), bucket.tokens + passed / _REFILL)
        accepted = tokens >= 1
        self._buckets.put(source, _Bucket(tokens - accepted, event.time))
        return accepted
