"""Keeps the API server's last state on disk, and returns it while the server does not answer.

Every reader of the API server notes what it reads here; a note is cheap. One task writes, in a
thread, and only what differs from the disk: one second after the first note, and again at the
earliest five seconds later, so that a thousand changes are one pass. A failed write is retried
and blocks no other task.

Nothing is written or removed before the server has listed the node's pods. If it does not
answer, `fall_back` makes the node use the state from disk; the first list ends that. Items that
no request has confirmed since then stay available, in case the server fails again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import trio
from lightkube.models.core_v1 import Node, Pod

from kubelet_trio.model import Bell, Offload, PodUid, get_logger
from kubelet_trio.objects import ApiObject, KnownToken, ObjectKey, ServiceFacts, TokenRequest
from kubelet_trio.offline.files import (
    NODE,
    SERVICES,
    Folder,
    Item,
    KnownTokens,
    object_item,
    pod_item,
    tokens_item,
)
from kubelet_trio.offline.plan import ServerState, kept_node, plan_pass

log = get_logger()

_SETTLE = 1.0  # seconds from the first note to a write
_PAUSE = 4.0  # seconds after a write before the next note counts
_RETRY = 30.0  # seconds after a failed write
_FLUSH_LIMIT = 4.0  # for the last pass, when the agent ends


class Keeper:
    """An `objects.ClusterMemory` on disk, and the fallback of the source of pods."""

    is_kept = True

    def __init__(self, folder: Folder, offload: Offload) -> None:
        self._folder = folder
        self._offload = offload
        self._last: dict[Item, Any] = {}  # from before this start, until the server has answered
        self._is_loaded = False
        self.is_cut_off = False
        self._pods: Mapping[PodUid, Pod] | None = None  # None: no list from the server yet
        self._objects: dict[ObjectKey, ApiObject | None] = {}
        self._tokens: dict[PodUid, dict[TokenRequest, KnownToken]] = {}
        self._single: dict[Item, object] = {}
        self._dirty: set[Item] = set()
        self._woken = Bell()
        self._stopping = trio.Event()

    # The state from before this start

    def fall_back(self) -> tuple[Pod, ...] | None:
        """Use the state from disk from now on; return its pods, None if there is none."""
        if self._pods is not None or not self._last:
            return None
        self.is_cut_off = True
        return tuple(value for value in self._last.values() if isinstance(value, Pod))

    def last_object(self, key: ObjectKey) -> ApiObject | None:
        found: ApiObject | None = self._last.get(object_item(key))
        return found

    def last_services(self) -> tuple[ServiceFacts, ...] | None:
        found: tuple[ServiceFacts, ...] | None = self._last.get(SERVICES)
        return found

    def last_token(self, request: TokenRequest) -> KnownToken | None:
        return self._tokens_of(request.uid).get(request)

    def _tokens_of(self, uid: PodUid) -> dict[TokenRequest, KnownToken]:
        """Return the tokens of a pod, including those from before this start."""
        before: KnownTokens | None = self._last.get(tokens_item(uid))
        if uid not in self._tokens and before is not None:
            self._tokens[uid] = dict(before.tokens)
        return self._tokens.get(uid, {})

    @property
    def last_node(self) -> Node | None:
        """The node's labels, taints and attached volumes."""
        found: Node | None = self._last.get(NODE)
        return found

    # Notes of what the server returned

    def note_pods(self, pods: Mapping[PodUid, Pod]) -> None:
        """Take all pods of the node; the caller must not change the mapping afterwards."""
        before = self._pods if self._pods is not None else {}
        if self._pods is None:
            self._last = {item: value for item, value in self._last.items() if item.kind != "Pod"}
            self.is_cut_off = False
            self._woken.ring()  # a write now removes files of pods that are gone
        news = [uid for uid, pod in pods.items() if before.get(uid) is not pod]
        gone = [uid for uid in before if uid not in pods]
        self._pods = pods
        # The server invalidates a token together with the pod that it is bound to.
        for uid in gone:
            self._tokens.pop(uid, None)
        self._note(*(pod_item(uid) for uid in (*news, *gone)))

    def note_object(self, key: ObjectKey, value: ApiObject | None) -> None:
        if key not in self._objects or self._objects[key] is not value:
            self._objects[key] = value
            self._note(object_item(key))

    def drop_object(self, key: ObjectKey) -> None:
        self._objects.pop(key, None)

    def note_services(self, facts: tuple[ServiceFacts, ...]) -> None:
        self._note_single(SERVICES, facts)

    def note_node(self, node: Node) -> None:
        """Take the node's object."""
        self._note_single(NODE, kept_node(node))

    def note_token(self, request: TokenRequest, token: KnownToken) -> None:
        self._tokens[request.uid] = {**self._tokens_of(request.uid), request: token}
        self._note(tokens_item(request.uid))

    def _note_single(self, item: Item, value: object) -> None:
        if self._single.get(item) != value:
            self._single[item] = value
            self._note(item)

    def _note(self, *items: Item) -> None:
        for item in items:
            self._last.pop(item, None)
        if items:
            self._dirty.update(items)
            self._woken.ring()

    # Writing

    def stop(self) -> None:
        """Ask `run` to end after a last write."""
        self._stopping.set()
        self._woken.ring()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Load the disk, then write until stopped. Ready when everything is loaded."""
        if not self._is_loaded:
            await self._load()
        task_status.started()
        while not self._stopping.is_set():
            await self._woken.wait_ring()
            # Changes come in bursts (a list, a restart): one write for all of them.
            await self._sleep(_SETTLE)
            if not self._stopping.is_set():
                await self._sleep(_PAUSE if await self._write() else _RETRY)
        with trio.move_on_after(_FLUSH_LIMIT):
            await self._write()

    async def _sleep(self, seconds: float) -> None:
        with trio.move_on_after(seconds):
            await self._stopping.wait()

    async def _load(self) -> None:
        try:
            self._last = dict(await self._offload(self._folder.load))
        except OSError as exc:
            log.error("offline.unreadable", path=str(self._folder.path), error=str(exc))
        self._is_loaded = True

    async def _write(self) -> bool:
        """Write what differs from the disk; return False if the disk refuses."""
        self._woken.clear()
        if self._pods is None:
            return True
        tokens = {u: KnownTokens(u, tuple(t.items())) for u, t in self._tokens.items()}
        state = ServerState(self._pods, dict(self._objects), tokens, dict(self._single))
        dirty, self._dirty = self._dirty, set()
        try:
            changed = await self._offload(_write_pass, self._folder, state, dirty)
        except OSError as exc:
            # Dirty again: how much of it was written is not known.
            self._note(*dirty)
            self._woken.ring()
            log.error("offline.not_written", path=str(self._folder.path), error=str(exc))
            return False
        # What was removed from the disk is no longer needed.
        self._last = {i: value for i, value in self._last.items() if i in self._folder.digests}
        if changed:
            log.debug("offline.written", files=changed)
        return True


def _write_pass(folder: Folder, state: ServerState, dirty: set[Item]) -> int:
    return folder.change(*plan_pass(state, dirty, folder.digests))
