"""A watch on a fake API server."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import trio

from kubelet_trio.kube import (
    Bookmark,
    KubeUnavailableError,
    Resource,
    WatchEvent,
    WatchEventKind,
    from_json,
)
from kubelet_trio.testing.kube.desk import Desk
from kubelet_trio.testing.kube.store import Json, Store

T = TypeVar("T")


class FakeWatch(Generic[T]):
    """Iterates over the events after a version, and bookmarks, until its timeout."""

    def __init__(
        self,
        store: Store,
        desk: Desk,
        route: Resource,
        model: type[T],
        matches: Callable[[Json], bool],
        *,
        version: str,
        initial_events: bool,
        ends_at: float,
        period: float,
    ) -> None:
        self._store = store
        self._desk = desk
        self._connection = desk.connection
        self._route = route
        self._model = model
        self._matches = matches
        self._ends_at = ends_at
        self._period = period
        self._is_mute = False
        self._next_bookmark = trio.current_time() + period
        self._ready: deque[WatchEvent[T] | Bookmark] = deque()
        # API concepts: a watch without a version, or with "0", begins with what exists.
        if initial_events or version in ("", "0"):
            self._version = store.version
            for obj in store.all(route.kind):
                if matches(obj):
                    self._ready.append(self._event(WatchEventKind.ADDED, obj))
            if initial_events:
                self._ready.append(self._bookmark(ends_initial=True))
        else:
            self._version = int(version)
            self._collect()  # raises 410 if the version is too old

    def __aiter__(self) -> FakeWatch[T]:
        return self

    async def __anext__(self) -> WatchEvent[T] | Bookmark:
        await trio.lowlevel.checkpoint()
        while True:
            if self._connection.is_set():
                raise KubeUnavailableError(f"watch {self._route.plural}: unexpected EOF")
            # For ever: like a connection through a proxy that lost its backend.
            self._is_mute |= self._desk.is_mute
            if self._is_mute:
                await self._connection.wait()
                continue
            if not self._desk.is_hanging:
                if self._ready:
                    return self._ready.popleft()
                self._collect()
                if self._ready:
                    continue
                if trio.current_time() >= self._ends_at:
                    raise StopAsyncIteration
                if trio.current_time() >= self._next_bookmark:
                    self._next_bookmark += self._period
                    return self._bookmark()
            await self._wait()

    async def _wait(self) -> None:
        """Wait for a change, the end of the connection, or the next deadline."""
        if self._desk.is_hanging:
            waits = [self._desk.wait_answering]
            until = float("inf")
        else:
            # Bound here, so that a change before the task below starts is not lost.
            waits = [self._store.changed.wait]
            until = min(self._next_bookmark, self._ends_at)
        with trio.move_on_at(until):
            async with trio.open_nursery() as nursery:
                for wait in (*waits, self._connection.wait):
                    nursery.start_soon(_first, wait, nursery.cancel_scope)

    def _collect(self) -> None:
        seen, self._version = self._store.since(self._route.kind, self._version, self._matches)
        for change in seen:
            self._ready.append(self._event(WatchEventKind(change.type), change.object))

    def _event(self, kind: WatchEventKind, obj: Json) -> WatchEvent[T]:
        return WatchEvent(kind, from_json(obj, self._model))

    def _bookmark(self, *, ends_initial: bool = False) -> Bookmark:
        return Bookmark(str(self._version), ends_initial)


async def _first(wait: Callable[[], Any], scope: trio.CancelScope) -> None:
    await wait()
    scope.cancel()
