"""A local copy of the API server's objects of one kind, kept by list and watch.

Like client-go's reflector:

- The first list may come from the server's cache (`resourceVersion=0`). Later lists are never
  older than the last known version; after 410 they are consistent reads in pages. Streaming lists
  replace lists if the server supports them (KEP-3157).
- A broken watch continues from the last version, bookmarks included. A watch without any event or
  bookmark for too long counts as broken.
- Failures are retried after 0.8 s, doubling to 30 s, with jitter.

The copy does not change while the server is unavailable: no answer is not an empty list.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Generic, TypeVar, cast

import trio
from trio_util import AsyncValue

from kubelet_trio.kube.api import Bookmark, KubeApi, ObjectList, WatchEvent, WatchEventKind
from kubelet_trio.kube.errors import (
    API_ERRORS,
    GoneError,
    KubeError,
    KubeTimeoutError,
    KubeUnavailableError,
)
from kubelet_trio.model import Backoff, get_logger

log = get_logger()
T = TypeVar("T")

Key = tuple[str, str]  # namespace ("" for what has none) and name

_PAGE = 500  # objects in one page of a list, as in client-go
_IDLE = 150.0  # seconds: API servers send a bookmark about once a minute
_INITIAL = 30.0  # seconds to the next event of a streaming list
_PROBE_LIMIT = 1.0  # seconds that a reflector waits for another's answer on streaming lists
_REFUSALS = 3  # of a watch, one after the other, after which a list takes its place
_SHORT = 1.0  # seconds: a watch that ends earlier, without an event, counts as failed


@dataclass(frozen=True, slots=True)
class Delivery(Generic[T]):
    """All current objects, and the keys of those that were added, changed or deleted.

    Changes between two deliveries are merged: a deleted and recreated object is in `changed` once,
    with a new UID.
    """

    objects: Mapping[Key, T]
    changed: frozenset[Key]


@dataclass(slots=True, eq=False)
class ServerFeatures:
    """Whether the server supports streaming lists; shared by all reflectors of one server.

    The first reflector finds out and the others wait for its result, but only for a moment: a
    server that is slow to refuse must not delay them.
    """

    streaming_lists: bool = True
    _is_known: bool = False
    _is_probing: bool = False
    _change: trio.Event = field(default_factory=trio.Event)

    def learn(self, *, streaming_lists: bool) -> None:
        """Record whether the server supports streaming lists."""
        self.streaming_lists, self._is_known = streaming_lists, True
        self._notify()

    @contextlib.asynccontextmanager
    async def probing(self) -> AsyncIterator[None]:
        """Enter when the answer is known, no other task is finding out, or it takes too long."""
        with trio.move_on_after(_PROBE_LIMIT):
            while self._is_probing and not self._is_known:
                await self._change.wait()
        is_first, self._is_probing = not self._is_probing, True
        try:
            yield
        finally:
            if is_first:
                self._is_probing = False
                self._notify()

    def _notify(self) -> None:
        # Several tasks may wait, so no `Bell`: each waits for the event that it found.
        self._change.set()
        self._change = trio.Event()


class Reflector(Generic[T]):
    """Keeps a copy of the objects of one kind that match a selector; for one consumer."""

    def __init__(
        self,
        api: KubeApi,
        model: type[T],
        *,
        namespace: str = "",
        field_selector: str = "",
        label_selector: str = "",
        features: ServerFeatures | None = None,
        transform: Callable[[T], T] | None = None,
        idle_limit: float = _IDLE,
        backoff: Backoff | None = None,
    ) -> None:
        """Follow the objects of `model` at `api`, once `run` runs.

        Args:
            api: the API server.
            model: the kind.
            namespace: empty for all namespaces.
            field_selector: empty for all objects.
            label_selector: empty for all objects.
            features: of the server; one for all of its reflectors.
            transform: returns the part of an object to keep, with its name and version. Managed
                fields, often the larger half of an object, are always dropped.
            idle_limit: seconds without event or bookmark after which a watch counts as broken.
            backoff: the delays after failures.
        """
        self._api = api
        self._model = model
        self._namespace = namespace
        self._fields = field_selector
        self._labels = label_selector
        self._transform = transform
        self._features = features or ServerFeatures()
        self._idle = idle_limit
        self._backoff = backoff or Backoff(0.8, 30.0, jitter=1.0, reset_after=120.0)
        # The version to list or watch from: "0" at first (any), None if only a consistent read
        # helps.
        self._version: str | None = "0"
        self._listed = False  # whether a watch can continue from `_version`
        self._lists_next = False  # whether a list is to come before the next watch
        self._refusals = 0  # since the last watch that was not refused
        self._objects: dict[Key, T] = {}
        self._is_shared = False  # a caller has `_objects`: copy it before the next change
        self._changed: set[Key] = set()
        self._undelivered = trio.Event()
        self.synced = trio.Event()  # set for good after the first list
        self.connected: AsyncValue[bool] = AsyncValue(False)  # whether the watch is up
        self.trouble = ""  # the last failure; empty while the watch is up
        self._warned = ""  # the failure told last, until a watch brings something

    @property
    def objects(self) -> Mapping[Key, T]:
        """The objects as they are now; never changed in place."""
        self._is_shared = True
        return MappingProxyType(self._objects)

    async def wait_delivery(self) -> Delivery[T]:
        """Return the first list; after that, wait for changes since the last call."""
        await self._undelivered.wait()
        self._undelivered = trio.Event()
        changed, self._changed = frozenset(self._changed), set()
        return Delivery(self.objects, changed)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """List and watch until cancelled."""
        task_status.started()
        while True:
            # The server's Retry-After counts if it is longer than our own delay.
            wait = 0.0
            try:
                await self._follow()
            except GoneError as exc:
                # etcd has compacted the version: only a new list helps.
                self._listed, self._version = False, None
                self._note(exc)
            except API_ERRORS as exc:
                wait = (exc.retry_after or 0.0) if isinstance(exc, KubeError) else 0.0
                self._lists_next = self._asks_for_list(exc)
                self._note(exc)
            await trio.sleep(max(wait, self._backoff.next_delay(trio.current_time())))

    async def _follow(self) -> None:
        """List if necessary, then watch until a failure."""
        while True:
            if self._lists_next or (not self._listed and not await self._may_stream()):
                await self._list()
                self._lists_next = False
            began = trio.current_time()
            has_events = await self._watch()
            self.connected.value = False
            if not has_events and trio.current_time() - began < _SHORT:
                raise KubeUnavailableError("the watch ended at once, without an event")

    async def _list(self) -> None:
        version = self._version
        page = await self._first_page(version)
        items = list(page.items)
        try:
            while page.continue_token:
                page = await self._page(None, limit=_PAGE, token=page.continue_token)
                items += page.items
        except GoneError:
            # The snapshot behind the continue token was compacted: read everything in one page.
            page = await self._page(None)
            items = list(page.items)
        kept = {_key(item): self._kept(item) for item in items}
        self._replace(kept, page.resource_version)

    async def _first_page(self, version: str | None) -> ObjectList[T]:
        if version is None:
            return await self._page(None, limit=_PAGE)
        # Without a limit: the server's cache answers in one page anyway.
        try:
            return await self._page(version)
        except KubeError as exc:
            # 410 Gone; 504 from a server that has not caught up ("Too large resource version").
            if version == "0" or exc.code not in (410, 504):
                raise
            self._version = None
            return await self._page(None, limit=_PAGE)

    async def _page(self, version: str | None, *, limit: int = 0, token: str = "") -> ObjectList[T]:
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
        if not self._features.streaming_lists:
            return False
        async with self._features.probing():
            return self._features.streaming_lists and await self._stream()

    async def _stream(self) -> bool:
        """List by a watch, then follow it; return False if that needs a plain list first.

        As in client-go any refusal does, also one that is no answer on whether the server supports
        this: an API server whose etcd cannot tell its progress fails each with 500.
        """
        found: dict[Key, T] = {}
        known = self._version if self._version != "0" else None
        try:
            async with self._watching(known, initial=True) as events:
                while True:
                    try:
                        event = await self._next(events, _INITIAL)
                    except _SilentError as exc:
                        raise _NoStreamError from exc  # it ignores `sendInitialEvents`
                    if isinstance(event, WatchEvent):
                        key = _key(event.object)
                        # Objects may change while the initial events are still being sent.
                        if event.kind is WatchEventKind.DELETED:
                            found.pop(key, None)
                        else:
                            found[key] = self._kept(event.object)
                    elif event is None:
                        raise _NoStreamError
                    elif event.ends_initial:
                        self._replace(found, event.resource_version)
                        self._features.learn(streaming_lists=True)
                        break
                self._begin()
                await self._take(events)
        except _NoStreamError:
            self._features.learn(streaming_lists=False)
        except KubeError as exc:
            # Both are answered elsewhere: a new start from no version, and a wait.
            if self._listed or exc.code in (410, 429):
                raise
            # How servers and proxies refuse an unknown parameter.
            if exc.code in (400, 403, 404, 422):
                self._features.learn(streaming_lists=False)
            log.debug("kube.reflector_list", kind=self._model.__name__, error=str(exc))
        self.connected.value = False
        return self._listed

    async def _watch(self) -> bool:
        """Watch from the last version; return whether there was any event."""
        async with self._watching(self._version, initial=False) as events:
            self._begin()
            return await self._take(events)

    async def _take(self, events: AsyncIterator[WatchEvent[T] | Bookmark]) -> bool:
        """Apply events until the server ends the watch."""
        has_events = False
        while True:
            event = await self._next(events, self._idle)
            if event is None:
                return has_events
            has_events, self._warned = True, ""
            if isinstance(event, Bookmark):
                self._version = event.resource_version
                continue
            self._apply(event)

    def _apply(self, event: WatchEvent[T]) -> None:
        key = _key(event.object)
        kept = None if event.kind is WatchEventKind.DELETED else self._kept(event.object)
        # One copy for each delivery, not for each event.
        objects = dict(self._objects) if self._is_shared else self._objects
        if kept is None:
            objects.pop(key, None)
        else:
            objects[key] = kept
        self._version = _version(event.object) or self._version
        self._publish(objects, {key})

    async def _next(
        self, events: AsyncIterator[WatchEvent[T] | Bookmark], limit: float
    ) -> WatchEvent[T] | Bookmark | None:
        """Return the next event, None at the end. Raises `_SilentError`."""
        with trio.move_on_after(limit):
            try:
                return await anext(events)
            except StopAsyncIteration:
                return None
        raise _SilentError(f"the watch sent nothing for {limit:g} s, not even a bookmark")

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
        _meta(obj).managedFields = None  # the decoded object has no other user yet
        return obj if self._transform is None else self._transform(obj)

    def _asks_for_list(self, failure: KubeError | KubeUnavailableError) -> bool:
        """Return whether a list may tell what a failed watch does not, as in client-go.

        Proxies hold back watches, and roles may allow lists alone. After a connection that broke or
        was refused, and while a server that starts anew refuses all, watches go on where they were.
        """
        if isinstance(failure, KubeError) and failure.code != 429:
            self._refusals += 1
            return self._refusals >= _REFUSALS
        return isinstance(failure, KubeTimeoutError)

    def _begin(self) -> None:
        self._refusals = 0
        self.trouble = ""
        self.connected.value = True

    def _replace(self, objects: dict[Key, T], version: str) -> None:
        """Replace the copy by the result of a list."""
        before = self._objects
        changed = {key for key in before if key not in objects}
        changed |= {
            key
            for key, obj in objects.items()
            if key not in before or _identity(before[key]) != _identity(obj)
        }
        self._version, self._listed = version, True
        # An empty first list is news too: it says that there are no objects.
        if changed or not self.synced.is_set():
            self.synced.set()
            self._publish(objects, changed)

    def _publish(self, objects: dict[Key, T], changed: set[Key]) -> None:
        if objects is not self._objects:
            self._objects, self._is_shared = objects, False
        self._changed |= changed
        self._undelivered.set()

    def _note(self, exc: Exception) -> None:
        self.connected.value = False
        self.trouble = text = str(exc)
        # A server without bookmarks lets each quiet watch fall silent: that is told once.
        if text != self._warned:
            self._warned = text
            log.warning("kube.reflector", kind=self._model.__name__, error=text)


class _SilentError(KubeTimeoutError):
    """A watch without any event or bookmark for too long."""


class _NoStreamError(Exception):
    """The server does not support streaming lists."""


def _meta(obj: object) -> Any:
    meta = cast("Any", obj).metadata
    if meta is None:
        raise KubeUnavailableError(f"the answer has a {type(obj).__name__} without metadata")
    return meta


def _key(obj: object) -> Key:
    meta = _meta(obj)
    return meta.namespace or "", meta.name or ""


def _version(obj: object) -> str:
    return _meta(obj).resourceVersion or ""


def _identity(obj: object) -> tuple[str, str]:
    meta = _meta(obj)
    return meta.uid or "", meta.resourceVersion or ""
