"""A local copy of what an API server has of one kind, kept by list and watch.

As client-go's reflector: the first list may come from the server's cache (`resourceVersion=0`),
later ones are never older than what was seen, and after 410 they are consistent reads in
pages. Where the server has them, streaming lists take the place of lists. A watch that breaks
goes on from the last version, bookmarks counted; one on which nothing came for too long, not
even a bookmark, is taken for dead. Failures are followed by waits with jitter, 0.8 s doubling
to 30 s. The copy stays as it was while there is trouble: no answer is not an empty one.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Generic, TypeVar, cast

import trio
from trio_util import AsyncValue

from kubelet_trio.kube.api import (
    API_ERRORS,
    Bookmark,
    GoneError,
    KubeApi,
    KubeError,
    KubeUnavailableError,
    Listing,
    WatchEvent,
    WatchEventKind,
)
from kubelet_trio.model import Backoff, get_logger

log = get_logger()
T = TypeVar("T")

Key = tuple[str, str]  # namespace ("" for what has none) and name

_PAGE = 500  # objects of a list's page, as client-go
_IDLE = 150.0  # seconds: bookmarks come about once a minute
_INITIAL = 30.0  # seconds to the next event of a streaming list
_PATIENCE = 1.0  # seconds that one waits for what another is finding out
_SHORT = 1.0  # seconds: a watch that ends earlier and empty is no watch


@dataclass(frozen=True, slots=True)
class Delivery(Generic[T]):
    """All objects as they are, and the keys of those that changed, came or went.

    Changes between two deliveries are one: an object that was deleted and made anew is
    `changed` once, with another UID.
    """

    objects: Mapping[Key, T]
    changed: frozenset[Key]


@dataclass(slots=True, eq=False)
class Abilities:
    """What a server turned out to lack; shared, so that not every reflector asks anew.

    One asks, and the others wait for the answer; for a moment, so that a server which is slow
    to refuse one holds up no other.
    """

    streaming_lists: bool = True
    _is_known: bool = False
    _is_asking: bool = False
    _change: trio.Event = field(default_factory=trio.Event)

    def learn(self, *, streaming_lists: bool) -> None:
        """Take over what was found out."""
        self.streaming_lists, self._is_known = streaming_lists, True
        self._tell()

    @contextlib.asynccontextmanager
    async def asking(self) -> AsyncIterator[None]:
        """Enter once it is known, or nobody else is finding out, or one has waited enough."""
        with trio.move_on_after(_PATIENCE):
            while self._is_asking and not self._is_known:
                await self._change.wait()
        is_first, self._is_asking = not self._is_asking, True
        try:
            yield
        finally:
            if is_first:
                self._is_asking = False
                self._tell()

    def _tell(self) -> None:
        self._change.set()
        self._change = trio.Event()


class Reflector(Generic[T]):
    """Keeps a copy of the objects of a kind that a selector lets through; for one consumer."""

    def __init__(
        self,
        api: KubeApi,
        model: type[T],
        *,
        namespace: str = "",
        field_selector: str = "",
        label_selector: str = "",
        abilities: Abilities | None = None,
        transform: Callable[[T], T] | None = None,
        idle_limit: float = _IDLE,
        backoff: Backoff | None = None,
    ) -> None:
        """Args:
        abilities: of the server; one for all reflectors that follow it.
        transform: returns what of an object is kept, its name and version among it. Managed
            fields, often the larger half of an object, are left out in any case.
        idle_limit: seconds without event and bookmark after which a watch is dead.
        """
        self._api = api
        self._model = model
        self._namespace = namespace
        self._fields = field_selector
        self._labels = label_selector
        self._transform = transform
        self._abilities = abilities or Abilities()
        self._idle = idle_limit
        self._backoff = backoff or Backoff(0.8, 30.0, jitter=1.0, reset_after=120.0)
        self._version: str | None = "0"  # "0" at first, None when only a consistent read helps
        self._listed = False  # whether a watch can go on from `_version`
        self._objects: dict[Key, T] = {}
        self._changed: set[Key] = set()
        self._undelivered = trio.Event()
        self.synced = trio.Event()  # set for good after the first list
        # Whether the watch is up, and what the trouble was if it is not.
        self.connected: AsyncValue[bool] = AsyncValue(False)
        self.trouble = ""

    @property
    def objects(self) -> Mapping[Key, T]:
        """The objects as they are now; never changed in place."""
        return MappingProxyType(self._objects)

    async def wait_delivery(self) -> Delivery[T]:
        """Return the first list, and after that whatever has changed since the last call."""
        await self._undelivered.wait()
        self._undelivered = trio.Event()
        changed, self._changed = frozenset(self._changed), set()
        return Delivery(self.objects, changed)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """List and watch until cancelled."""
        task_status.started()
        while True:
            wait = 0.0
            try:
                await self._follow()
            except GoneError as exc:
                self._listed, self._version = False, None
                self._note(exc)
            except API_ERRORS as exc:
                wait = (exc.retry_after or 0.0) if isinstance(exc, KubeError) else 0.0
                self._note(exc)
            await trio.sleep(max(wait, self._backoff.next_delay(trio.current_time())))

    async def _follow(self) -> None:
        """List if need be, and watch for as long as that goes well."""
        while True:
            if not self._listed and not await self._may_stream():
                await self._list()
            began = trio.current_time()
            told = await self._watch()
            self.connected.value = False
            if not told and trio.current_time() - began < _SHORT:
                raise KubeUnavailableError("the watch ended at once, with nothing told")

    async def _list(self) -> None:
        version = self._version
        page = await self._first_page(version)
        items = list(page.items)
        try:
            while page.continue_token:
                page = await self._page(None, limit=_PAGE, token=page.continue_token)
                items += page.items
        except GoneError:
            # The moment that the pages show is forgotten: all of it in one answer.
            page = await self._page(None)
            items = list(page.items)
        kept = {_key(item): self._kept(item) for item in items}
        self._replace(kept, page.resource_version)

    async def _first_page(self, version: str | None) -> Listing[T]:
        if version is None:
            return await self._page(None, limit=_PAGE)
        try:
            return await self._page(version)
        except KubeError as exc:
            # Gone, or from a server that has not caught up yet ("Too large resource version").
            if version == "0" or exc.code not in (410, 504):
                raise
            self._version = None
            return await self._page(None, limit=_PAGE)

    async def _page(self, version: str | None, *, limit: int = 0, token: str = "") -> Listing[T]:
        return await self._api.list(
            self._model,
            namespace=self._namespace,
            field_selector=self._fields,
            label_selector=self._labels,
            limit=limit,
            continue_token=token,
            resource_version=version or "",
        )

    async def _may_stream(self) -> bool:
        if not self._abilities.streaming_lists:
            return False
        async with self._abilities.asking():
            return self._abilities.streaming_lists and await self._stream()

    async def _stream(self) -> bool:
        """List by a watch and go on watching it; False if the server does not do that."""
        found: dict[Key, T] = {}
        known = self._version if self._version != "0" else None
        try:
            async with self._watching(known, initial=True) as events:
                while True:
                    try:
                        event = await self._next(events, _INITIAL)
                    except _SilentError as exc:
                        raise _NoStreamError from exc  # a server that ignores what it was asked
                    if isinstance(event, WatchEvent):
                        key = _key(event.object)
                        if event.kind is WatchEventKind.DELETED:
                            found.pop(key, None)
                        else:
                            found[key] = self._kept(event.object)
                    elif event is None:
                        raise _NoStreamError
                    elif event.ends_initial:
                        self._replace(found, event.resource_version)
                        self._abilities.learn(streaming_lists=True)
                        break
                self._begin()
                await self._take(events)
        except _NoStreamError:
            self._abilities.learn(streaming_lists=False)
        except KubeError as exc:
            if self._listed or exc.code not in (400, 403, 404, 422):
                raise
            # Servers refuse what they do not know in one of these words.
            self._abilities.learn(streaming_lists=False)
        self.connected.value = False
        return self._listed

    async def _watch(self) -> bool:
        """Watch from the last version; return whether anything was told."""
        async with self._watching(self._version, initial=False) as events:
            self._begin()
            return await self._take(events)

    async def _take(self, events: AsyncIterator[WatchEvent[T] | Bookmark]) -> bool:
        """Apply events until the server ends the watch."""
        told = False
        while True:
            event = await self._next(events, self._idle)
            if event is None:
                return told
            told = True
            if isinstance(event, Bookmark):
                self._version = event.resource_version
                continue
            key = _key(event.object)
            if event.kind is WatchEventKind.DELETED:
                objects = {k: v for k, v in self._objects.items() if k != key}
            else:
                objects = {**self._objects, key: self._kept(event.object)}
            self._version = _version(event.object) or self._version
            self._publish(objects, {key})

    async def _next(
        self, events: AsyncIterator[WatchEvent[T] | Bookmark], limit: float
    ) -> WatchEvent[T] | Bookmark | None:
        """Return the next event, None at the end."""
        with trio.move_on_after(limit):
            try:
                return await anext(events)
            except StopAsyncIteration:
                return None
        raise _SilentError(f"the watch said nothing for {limit:g} s, not even a bookmark")

    @contextlib.asynccontextmanager
    async def _watching(
        self, version: str | None, *, initial: bool
    ) -> AsyncIterator[AsyncIterator[WatchEvent[T] | Bookmark]]:
        async with self._api.watch(
            self._model,
            namespace=self._namespace,
            field_selector=self._fields,
            label_selector=self._labels,
            resource_version=version or "",
            send_initial_events=initial,
        ) as events:
            yield events

    def _kept(self, obj: T) -> T:
        _meta(obj).managedFields = None  # decoded for us, so it is ours to change
        return obj if self._transform is None else self._transform(obj)

    def _begin(self) -> None:
        self.trouble = ""
        self.connected.value = True

    def _replace(self, objects: dict[Key, T], version: str) -> None:
        """Take the result of a list."""
        before = self._objects
        changed = {key for key in before if key not in objects}
        changed |= {
            key
            for key, obj in objects.items()
            if key not in before or _identity(before[key]) != _identity(obj)
        }
        self._version, self._listed = version, True
        if changed or not self.synced.is_set():
            self.synced.set()
            self._publish(objects, changed)

    def _publish(self, objects: dict[Key, T], changed: set[Key]) -> None:
        self._objects = objects
        self._changed |= changed
        self._undelivered.set()

    def _note(self, exc: Exception) -> None:
        self.connected.value = False
        text = str(exc)
        if text != self.trouble:
            self.trouble = text
            log.warning("kube.reflector", kind=self._model.__name__, error=text)


class _SilentError(KubeUnavailableError):
    """A watch is taken for dead."""


class _NoStreamError(Exception):
    """The server ended a streaming list before its end: it knows none."""


def _meta(obj: object) -> Any:
    meta = cast("Any", obj).metadata
    if meta is None:
        raise KubeUnavailableError(f"a {type(obj).__name__} without metadata: no API server's")
    return meta


def _key(obj: object) -> Key:
    meta = _meta(obj)
    return meta.namespace or "", meta.name or ""


def _version(obj: object) -> str:
    return _meta(obj).resourceVersion or ""


def _identity(obj: object) -> tuple[str, str]:
    meta = _meta(obj)
    return meta.uid or "", meta.resourceVersion or ""
