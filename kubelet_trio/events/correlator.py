"""Decides which events reach the API server: aggregation, counting, spam filter. Pure.

An occurrence passes three stages, as in client-go's EventCorrelator:

1. Aggregation: ten different messages with one reason about one object within ten minutes become
   one event whose message begins with `(combined from similar events): `.
2. Counting: repeats of an event patch its count on the server.
3. Spam filter: an object may have 25 events at once and one more every five minutes. Beyond that
   its repeated events are dropped.

One difference: an object's new event passes the spam filter even then. Otherwise a probe that fails
every second would hide that its container is stopped. Aggregation bounds the number of new events.

The caller gives the time (Unix seconds). Each stage keeps the 4096 keys used last. Source:
tools/record/events_cache.go.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from kubelet_trio.model import Event, ObjectRef

_CACHED = 4096
_SIMILAR = 10  # distinct messages that become one event
_SIMILAR_WINDOW = 600.0  # seconds since the last of them
_BURST = 25
_REFILL = 300.0  # seconds for one more token
PREFIX = "(combined from similar events): "

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class _Lru(Generic[K, V]):
    """A mapping that keeps the `_CACHED` keys put last."""

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
class ServerEvent:
    """One event on the server, to be created if `count` is 1, else patched."""

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
    """The state of the three stages. One writer: the sender of the events."""

    def __init__(self) -> None:
        self._similar: _Lru[tuple[ObjectRef, str, str], _Similar] = _Lru()
        self._sent: _Lru[Key, ServerEvent] = _Lru()
        self._buckets: _Lru[ObjectRef, _Bucket] = _Lru()
        self._last_name = 0

    def correlate(self, event: Event) -> ServerEvent | None:
        """Count one occurrence; return the event to write, None if it is dropped."""
        event, key = self._aggregate(event)
        before = self._sent.get(key)
        if before is None:
            record = ServerEvent(key, self._name(event), event, 1, event.time)
        else:
            record = replace(before, event=event, count=before.count + 1)
        # Counted even if it is dropped, so that the next one that passes has the full count.
        self._sent.put(key, record)
        is_accepted = self._accept(event)
        return record if is_accepted or before is None else None

    def forget(self, key: Key) -> ServerEvent | None:
        """Return the event to create in place of one that the server no longer has."""
        record = self._sent.get(key)
        if record is None:
            return None
        renewed = replace(record, name=self._name(record.event), count=1, first=record.event.time)
        self._sent.put(key, renewed)
        return renewed

    def _name(self, event: Event) -> str:
        """Return a unique name: as upstream, the object's and the time in nanoseconds."""
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
        # By distinct messages, not occurrences: repeats of one message are only counted.
        if len(messages) < _SIMILAR:
            self._similar.put(group, _Similar(messages, event.time))
            return event, (event.involved, event.type, event.reason, event.message)
        # Kept one below the limit, so that the next occurrence is combined too.
        self._similar.put(group, _Similar(frozenset([*messages][: _SIMILAR - 1]), event.time))
        return replace(event, message=PREFIX + event.message), (*group, "")

    def _accept(self, event: Event) -> bool:
        source = replace(event.involved, field_path="")
        bucket = self._buckets.get(source) or _Bucket(_BURST, event.time)
        # If the clock was set back, the difference must not take tokens away.
        passed = max(0.0, event.time - bucket.at)
        tokens = min(float(_BURST), bucket.tokens + passed / _REFILL)
        accepted = tokens >= 1
        self._buckets.put(source, _Bucket(tokens - accepted, event.time))
        return accepted
