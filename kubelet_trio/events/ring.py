"""The node's own event store: bounded, folded, and watchable.

Repeats of one event (same object, type, reason and message) are one entry whose count and
last time grow, as Kubernetes' EventCorrelator folds them. The ring keeps the entries that
changed last; `version` grows with every change, so that a reader asks for what is newer
than what it saw and a slow one costs nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from lightkube.models import core_v1, meta_v1
from trio_util import AsyncValue

from kubelet_trio.events.object import event_object
from kubelet_trio.model import Event, ObjectRef, to_datetime

Key = tuple[ObjectRef, str, str, str]


class _Entry:
    """One folded event; `version` is that of its last change."""

    __slots__ = ("count", "event", "last", "version")

    def __init__(self, event: Event) -> None:
        self.event = event
        self.count = 0
        self.last = event.time
        self.version = 0


class EventRing:
    """The last events of the node, oldest change first. One writer: the recorder."""

    def __init__(self, host: str, *, component: str = "kubelet", capacity: int = 1000) -> None:
        self.version: AsyncValue[int] = AsyncValue(0)
        self._source = core_v1.EventSource(component=component, host=host)
        self._capacity = capacity
        self._entries: OrderedDict[Key, _Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def fold(self, event: Event) -> int:
        """Take in one occurrence and return how many there were of it."""
        key = (event.involved, event.type, event.reason, event.message)
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = _Entry(event)
        entry.count += 1
        entry.last = event.time
        entry.version = self.version.value + 1
        self._entries.move_to_end(key)
        if len(self._entries) > self._capacity:
            self._entries.popitem(last=False)
        self.version.value = entry.version
        return entry.count

    def events(
        self, newer_than: int = 0, *, kind: str = "", namespace: str = "", name: str = ""
    ) -> list[core_v1.Event]:
        """Return events that changed after version `newer_than`, oldest change first.

        `kind`, `namespace` and `name` choose by the involved object; empty is any.
        """
        return [
            self._as_api(entry)
            for entry in self._newer(newer_than)
            if (not kind or entry.event.involved.kind == kind)
            and (not namespace or entry.event.involved.namespace == namespace)
            and (not name or entry.event.involved.name == name)
        ]

    def _newer(self, version: int) -> list[_Entry]:
        return list(self._newest_first(version))[::-1]

    def _newest_first(self, version: int) -> Iterator[_Entry]:
        for entry in reversed(self._entries.values()):
            if entry.version <= version:
                return
            yield entry

    def _as_api(self, entry: _Entry) -> core_v1.Event:
        event = entry.event
        meta = meta_v1.ObjectMeta(
            # Upstream's form of the name: the object's, and the first time in nanoseconds.
            name=f"{event.involved.name}.{int(event.time * 10**9):x}",
            namespace=event.involved.namespace or "default",
            annotations=dict(event.annotations or {}) or None,
            creationTimestamp=to_datetime(event.time),
            resourceVersion=str(entry.version),
        )
        return event_object(
            event, meta, self._source, count=entry.count, first=event.time, last=entry.last
        )
