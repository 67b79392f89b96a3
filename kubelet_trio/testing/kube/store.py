"""The storage of a fake API server: objects, one version counter, and the log of changes.

Objects are plain JSON values and never changed in place, so every reference is a snapshot.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import trio

from kubelet_trio.kube import GoneError

Json = dict[str, Any]
Key = tuple[str, str]  # namespace ("" for cluster-scoped kinds) and name

# Odd, so that multiples modulo 2**128 are unique; large, so that UIDs differ in their first digits.
_STRIDE = 0x9E3779B97F4A7C15F39CC0605CEDC835
_LOG = 10_000  # changes kept; older ones are compacted


@dataclass(frozen=True, slots=True)
class Change:
    """One change; `before` is None for a new object, `after` for a deleted one."""

    version: int
    kind: str
    before: Json | None
    after: Json | None


@dataclass(frozen=True, slots=True)
class Seen:
    """A change, as a watch with a selector shows it."""

    version: int
    type: str  # ADDED, MODIFIED or DELETED
    object: Json


class Store:
    """Every object of a fake API server."""

    def __init__(self) -> None:
        self.version = 1
        self.compacted = 0  # changes up to this version are compacted
        self._objects: dict[str, dict[Key, Json]] = {}
        self._log: deque[Change] = deque()
        self._changed = trio.Event()
        self._uids = 0

    def next_uid(self) -> str:
        """Return a new UID; every run has the same sequence, so that seeds are reproducible."""
        self._uids += 1
        return str(uuid.UUID(int=self._uids * _STRIDE % 2**128))

    def get(self, kind: str, namespace: str, name: str) -> Json | None:
        return self._objects.get(kind, {}).get((namespace, name))

    def all(self, kind: str, namespace: str = "") -> list[Json]:
        """Return the objects of a kind, of one namespace or all, by namespace and name."""
        objects = self._objects.get(kind, {})
        return [objects[key] for key in sorted(objects) if not namespace or key[0] == namespace]

    def put(self, kind: str, obj: Json) -> Json:
        """Store a new state of an object; return it with its version."""
        key, before = self._before(kind, obj)
        self.version += 1
        after = stamped(obj, self.version)
        self._objects.setdefault(kind, {})[key] = after
        self._append(Change(self.version, kind, before, after))
        return after

    def remove(self, kind: str, obj: Json) -> Json:
        """Delete an object; return its last state, with the version of the deletion."""
        # As in etcd, a deletion has a version of its own; the DELETED event shows it.
        key, _ = self._before(kind, obj)
        del self._objects[kind][key]
        self.version += 1
        last = stamped(obj, self.version)
        self._append(Change(self.version, kind, last, None))
        return last

    def compact(self, version: int | None = None) -> None:
        """Drop the changes up to a version; None: all."""
        # A watch from exactly this version is still possible.
        self.compacted = max(self.compacted, self.version if version is None else version)
        while self._log and self._log[0].version <= self.compacted:
            self._log.popleft()

    def since(
        self, kind: str, version: int, matches: Callable[[Json], bool]
    ) -> tuple[list[Seen], int]:
        """Return the changes after a version, and the current version.

        Raises:
            GoneError: the version is compacted.
        """
        if version < self.compacted:
            message = f"too old resource version: {version} ({self.compacted})"
            raise GoneError(410, "Expired", message)
        seen = [
            shown
            for change in self._newer(version)
            if change.kind == kind and (shown := _shown(change, matches)) is not None
        ]
        return seen, self.version

    async def wait_change(self) -> None:
        """Wait for the next change of anything."""
        await self._changed.wait()

    @property
    def changed(self) -> trio.Event:
        """An event for the next change; get it before reading the store, to miss nothing."""
        return self._changed

    def wake(self) -> None:
        """Wake all waiting tasks, without a change."""
        self._changed.set()
        self._changed = trio.Event()

    def _newer(self, version: int) -> Iterator[Change]:
        # From the end: a watch has seen nearly all of the log.
        newer = []
        for change in reversed(self._log):
            if change.version <= version:
                break
            newer.append(change)
        return reversed(newer)

    def _before(self, kind: str, obj: Json) -> tuple[Key, Json | None]:
        meta = obj["metadata"]
        key = (meta.get("namespace", ""), meta["name"])
        return key, self._objects.get(kind, {}).get(key)

    def _append(self, change: Change) -> None:
        self._log.append(change)
        if len(self._log) > _LOG:
            self.compact(self._log[0].version)
        self.wake()


def stamped(obj: Json, version: int) -> Json:
    """Return an object with a resource version."""
    return {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(version)}}


def _shown(change: Change, matches: Callable[[Json], bool]) -> Seen | None:
    """Return a change as a selector sees it: an object that no longer matches is DELETED."""
    was = change.before is not None and matches(change.before)
    now = change.after is not None and matches(change.after)
    if now and change.after is not None:
        return Seen(change.version, "MODIFIED" if was else "ADDED", change.after)
    if was and change.before is not None:
        return Seen(change.version, "DELETED", stamped(change.before, change.version))
    return None
