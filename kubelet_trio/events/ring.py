"""The node's own event store: bounded and watchable.

Repeats of one event (same object, type, reason and message) are one entry with a count and a last
time, as in client-go's EventCorrelator. The ring keeps the entries that changed last. `version`
grows with every change: a reader asks for the entries newer than its last version, so a slow reader
needs no queue.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from lightkube.models import core_v1, meta_v1
from trio_util import AsyncValue

from kubelet_trio.model import Event, ObjectRef, to_datetime

Key = tuple[ObjectRef, str, str, str]


class _Entry:
    """One event with its repeats; `version` is the ring's at its last change."""

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
        """Add one occurrence; return the number of occurrences of its event."""
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

        `kind`, `namespace` and `name` select by the involved object; empty is any.
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
            # Entries are in the order of their versions: all others are older.
            if entry.version <= version:
                return
            yield entry

    def _as_api(self, entry: _Entry) -> core_v1.Event:
        event = entry.event
        meta = meta_v1.ObjectMeta(
            # As upstream, the object's name and the time of the first occurrence in nanoseconds.
            name=f"{event.involved.name}.{int(event.time * 10**9):x}",
            namespace=event.involved.namespace or "default",
            annotations=dict(event.annotations or {}) or None,
            creationTimestamp=to_datetime(event.time),
            resourceVersion=str(entry.version),
        )
        return event_object(
            event, meta, self._source, count=entry.count, first=event.time, last=entry.last
        )


def event_object(
    event: Event,
    metadata: meta_v1.ObjectMeta,
    source: core_v1.EventSource,
    *,
    count: int,
    first: float,
    last: float,
) -> core_v1.Event:
    """Return the core/v1 Event for `count` occurrences between two Unix times."""
    involved = event.involved
    return core_v1.Event(
        metadata=metadata,
        involvedObject=core_v1.ObjectReference(
            apiVersion="v1",
            kind=involved.kind,
            name=involved.name,
            namespace=involved.namespace or None,
            uid=involved.uid or None,
            fieldPath=involved.field_path or None,
        ),
        type=event.type,
        reason=event.reason,
        message=event.message,
        count=count,
        firstTimestamp=to_datetime(first),
        lastTimestamp=to_datetime(last),
        source=source,
        reportingComponent=source.component,
        reportingInstance=source.host,
    )
