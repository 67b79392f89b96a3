"""Objects from the API server: read, and watched while a pod holds them.

One watch per object, however many pods hold it. An immutable object is read once. Claims and
volumes are read on demand, and cached once they are bound. While the server is unreachable,
running pods continue with the last state. A node that starts without a connection uses its
memory (`memory.ClusterMemory`), and reads everything again once it is connected.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Iterable, Set
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any

import trio

from kubelet_trio.kube import (
    API_ERRORS,
    Bookmark,
    GoneError,
    KubeApi,
    KubeError,
    KubeUnavailableError,
    NotFoundError,
    WatchEvent,
    WatchEventKind,
)
from kubelet_trio.model import Backoff, PodUid, get_logger
from kubelet_trio.objects.errors import ObjectError, ObjectNotFoundError
from kubelet_trio.objects.kinds import KINDS, ApiObject, ObjectKey
from kubelet_trio.objects.memory import NO_MEMORY, ClusterMemory
from kubelet_trio.objects.store import ObjectStore
from kubelet_trio.supervision import ChildSpec, DynamicSupervisor, Restart, RestartPolicy

log = get_logger()

# The Node authorizer lets a node get these, but not watch them (plugin/pkg/auth/authorizer/node).
_GET_ONLY = ("PersistentVolumeClaim", "PersistentVolume")
_FIRST_ANSWER = 10.0  # seconds that `get` waits for the first read
_RETRY_BASE, _RETRY_CAP = 0.8, 30.0  # seconds, as in client-go's reflector
# Seconds without an event or bookmark after which a watch counts as dead. The server sends a
# bookmark about once a minute.
_IDLE = 150.0
# Seconds after which the server ends a watch: its own default. client-go's reflector requests
# 300 to 600, which is a request every 8 s for 60 objects; `_IDLE` finds dead watches sooner.
_WATCH_SECONDS = (1800, 3600)

_NEVER = float("-inf")


class ChangeDetection(Enum):
    """`configMapAndSecretChangeDetectionStrategy`."""

    WATCH = "Watch"
    CACHE = "Cache"  # read again if older than the time to live
    GET = "Get"  # read every time


@dataclass(slots=True, eq=False)
class _Entry:
    """The state of one object that pods hold."""

    key: ObjectKey
    holders: set[PodUid] = field(default_factory=set)
    value: ApiObject | ObjectNotFoundError | None = None  # None: not read yet
    problem: ObjectError | None = None  # why it could not be read
    read_at: float = _NEVER  # trio time at which `value` was read
    answered: trio.Event = field(default_factory=trio.Event)  # there is a value or a problem

    def known(self) -> ApiObject:
        """Return the object. Raises `ObjectError` if there is none."""
        # A new exception each time: a kept one would collect the traceback of every raise.
        if isinstance(self.value, ObjectNotFoundError):
            raise ObjectNotFoundError(self.key)
        if self.value is not None:
            return self.value
        raise ObjectError(str(self.problem) if self.problem is not None else _not_synced(self.key))


class ClusterObjects:
    """An `ObjectStore` on an API server; `tree` supervises its watches."""

    def __init__(
        self,
        api: KubeApi,
        changed: Callable[[PodUid], None] = lambda _uid: None,
        *,
        strategy: ChangeDetection = ChangeDetection.WATCH,
        time_to_live: Callable[[], float] = lambda: 60.0,
        memory: ClusterMemory = NO_MEMORY,
    ) -> None:
        """Set the store up; it reads when pods hold keys.

        Args:
            api: the API server.
            changed: called for each pod when an object that it holds has changed.
            strategy: how changes of config maps and secrets are detected.
            time_to_live: returns seconds, for `CACHE` only; the node's annotation
                `node.alpha.kubernetes.io/ttl` may set them.
            memory: what was known before this start.
        """
        self._api = api
        self._changed = changed
        self._strategy = strategy
        self._time_to_live = time_to_live
        self._memory = memory
        self._entries: dict[ObjectKey, _Entry] = {}
        self.tree = DynamicSupervisor("objects", policy=RestartPolicy(limit=3))

    @property
    def held(self) -> Set[ObjectKey]:
        """The keys that pods hold."""
        return self._entries.keys()

    def hold(self, uid: PodUid, keys: Iterable[ObjectKey]) -> None:
        for key in keys:
            entry = self._entries.get(key)
            if entry is None:
                entry = self._entries[key] = _Entry(key)
                if self._memory.is_cut_off:
                    self._remember(entry)
                if self._is_watched(key):
                    run = partial(self._follow, entry)
                    self.tree.start_child(ChildSpec(_child_name(key), run, Restart.TRANSIENT))
            entry.holders.add(uid)
            # A new or changed pod gets the current object, as in the Go kubelet
            # (objectStore.AddReference in pkg/kubelet/util/manager).
            entry.read_at = _NEVER

    def release(self, uid: PodUid) -> None:
        for key, entry in list(self._entries.items()):
            entry.holders.discard(uid)
            if not entry.holders:
                del self._entries[key]
                self._memory.drop_object(key)
                if self._is_watched(key):
                    self.tree.stop_child(_child_name(key))

    async def get(self, key: ObjectKey, uid: PodUid | None = None) -> ApiObject:
        """Return an object; it is the same for every pod. Raises `ObjectError`."""
        entry = self._entries.get(key)
        if entry is None:
            return await self._read(key)
        if self._is_watched(key):
            # The pod's worker waits here: after a while it must report the problem instead.
            with trio.move_on_after(_FIRST_ANSWER):
                await entry.answered.wait()
            if not entry.answered.is_set():
                self._remember(entry)
            return entry.known()
        return await self._get_unwatched(entry)

    def _remember(self, entry: _Entry) -> None:
        """Use the state known before this start, because the server does not answer."""
        if entry.value is None:
            entry.value = self._memory.last_object(entry.key)
        if entry.value is not None:
            entry.answered.set()

    def _is_watched(self, key: ObjectKey) -> bool:
        if key.kind in _GET_ONLY:
            return False
        return self._strategy is ChangeDetection.WATCH or key.kind not in ("ConfigMap", "Secret")

    # Without a watch

    async def _get_unwatched(self, entry: _Entry) -> ApiObject:
        if self._may_keep(entry):
            return entry.known()
        try:
            self._take(entry, await self._read(entry.key))
        except ObjectNotFoundError as exc:
            self._take(entry, exc)
        except ObjectError as exc:
            if isinstance(exc.__cause__, KubeUnavailableError):
                self._remember(entry)
            # The strategy GET promises a current object; otherwise an old one is better than none.
            if self._strategy is ChangeDetection.GET or entry.value is None:
                raise
        return entry.known()

    def _may_keep(self, entry: _Entry) -> bool:
        if self._memory.is_cut_off and entry.value is not None:
            return True
        if entry.value is None or isinstance(entry.value, ObjectNotFoundError):
            return False
        if entry.key.kind in _GET_ONLY:
            # After `hold` read again: the claim may have been deleted and recreated.
            return entry.read_at != _NEVER and _is_settled(entry.value)
        # An immutable object, too: it may have been deleted and created again.
        age = trio.current_time() - entry.read_at
        return self._strategy is ChangeDetection.CACHE and age < self._time_to_live()

    async def _read(self, key: ObjectKey) -> ApiObject:
        try:
            return await self._api.get(KINDS[key.kind], key.name, namespace=key.namespace)
        except NotFoundError:
            raise ObjectNotFoundError(key) from None
        except API_ERRORS as exc:
            raise _unread(key, exc) from exc

    # With a watch

    async def _follow(
        self, entry: _Entry, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Keep an entry up to date; return once the object is immutable."""
        task_status.started()
        backoff = Backoff(_RETRY_BASE, _RETRY_CAP, jitter=1.0)
        version = ""  # "": to be listed
        while True:
            began, has_failed = trio.current_time(), True
            try:
                if not version:
                    version = await self._list(entry)
                    backoff.reset()
                if _is_immutable(entry.value):
                    return
                version = await self._watch(entry, version)
                backoff.reset()
                has_failed = False
            except GoneError:
                version = ""
            except API_ERRORS as exc:
                # A refusal may concern the resource version: list again. After a lost connection
                # the watch continues from its version.
                version = version if isinstance(exc, KubeUnavailableError) else ""
                self._failed(entry, exc)
            if has_failed or trio.current_time() - began < _RETRY_BASE:
                await trio.sleep(backoff.next_delay())

    async def _list(self, entry: _Entry) -> str:
        key = entry.key
        listing = await self._api.list(
            KINDS[key.kind],
            namespace=key.namespace,
            field_selector=f"metadata.name={key.name}",
            resource_version="0",  # from the server's cache, without a read of etcd
        )
        found = next(iter(listing.items), None)
        self._take(entry, found if found is not None else ObjectNotFoundError(key))
        return listing.resource_version

    async def _watch(self, entry: _Entry, version: str) -> str:
        """Apply changes until the server ends the watch; return the version to continue from."""
        key = entry.key
        # List and watch of one object by name: the Node authorizer allows no other.
        async with self._api.watch(
            KINDS[key.kind],
            namespace=key.namespace,
            field_selector=f"metadata.name={key.name}",
            resource_version=version,
            timeout=random.randint(*_WATCH_SECONDS),
        ) as events:
            with trio.move_on_after(_IDLE) as silence:
                version = await self._take_events(entry, events, version, silence)
        if silence.cancelled_caught:
            raise KubeUnavailableError(f"watch of {key}: nothing came for {_IDLE:g} s")
        return version

    async def _take_events(
        self,
        entry: _Entry,
        events: AsyncIterator[WatchEvent[Any] | Bookmark],
        version: str,
        silence: trio.CancelScope,
    ) -> str:
        async for event in events:
            silence.deadline = trio.current_time() + _IDLE
            if isinstance(event, Bookmark):
                version = event.resource_version
                continue
            version = _version(event.object) or version
            if event.kind is WatchEventKind.DELETED:
                self._take(entry, ObjectNotFoundError(entry.key))
                continue
            self._take(entry, event.object)
            if _is_immutable(entry.value):
                break
        return version

    def _take(self, entry: _Entry, value: ApiObject | ObjectNotFoundError) -> None:
        before, entry.value = entry.value, value
        entry.problem = None
        entry.read_at = trio.current_time()
        self._memory.note_object(entry.key, None if isinstance(value, Exception) else value)
        was_answered = entry.answered.is_set()
        entry.answered.set()
        if _is_same(before, value) or not (was_answered and self._is_watched(entry.key)):
            return  # pods that wait for the first answer have it by `answered`
        for uid in sorted(entry.holders):
            self._changed(uid)

    def _failed(self, entry: _Entry, exc: KubeError | KubeUnavailableError) -> None:
        log.debug("objects.unread", object=str(entry.key), error=str(exc))
        if entry.value is None:
            entry.problem = _unread(entry.key, exc)
            if isinstance(exc, KubeUnavailableError):
                self._remember(entry)
            entry.answered.set()


def _is_same(before: object, value: object) -> bool:
    if isinstance(before, ObjectNotFoundError):
        return isinstance(value, ObjectNotFoundError)
    return before == value


def _is_immutable(value: object) -> bool:
    return bool(getattr(value, "immutable", None))


def _is_settled(value: Any) -> bool:
    """Return whether a claim or volume is bound; a binding never changes."""
    status = value.status
    return status is not None and status.phase == "Bound"


def _version(value: Any) -> str:
    return (value.metadata.resourceVersion or "") if value.metadata is not None else ""


def _unread(key: ObjectKey, exc: KubeError | KubeUnavailableError) -> ObjectError:
    return ObjectError(f"failed to get {key.kind.lower()} {_path(key)}: {exc}")


def _not_synced(key: ObjectKey) -> str:
    return f"failed to sync {key.kind.lower()} cache: timed out waiting for the condition"


def _path(key: ObjectKey) -> str:
    return f"{key.namespace}/{key.name}" if key.namespace else key.name


def _child_name(key: ObjectKey) -> str:
    return f"{key.kind.lower()}:{_path(key)}"


class NodeObjects:
    """An `ObjectStore` of both: documents of manifests for static pods, the cluster's for others.

    A static pod never reads from the API server: a user who may write manifests on the node must
    not thereby read the cluster's objects. (The Go kubelet refuses such references altogether:
    gate PreventStaticPodAPIReferences.)
    """

    def __init__(
        self, local: ObjectStore, cluster: ClusterObjects, is_static: Callable[[PodUid], bool]
    ) -> None:
        self._local = local
        self._cluster = cluster
        self._is_static = is_static

    def hold(self, uid: PodUid, keys: Iterable[ObjectKey]) -> None:
        (self._local if self._is_static(uid) else self._cluster).hold(uid, keys)

    def release(self, uid: PodUid) -> None:
        self._local.release(uid)
        self._cluster.release(uid)

    async def get(self, key: ObjectKey, uid: PodUid) -> ApiObject:
        return await (self._local if self._is_static(uid) else self._cluster).get(key, uid)
