"""Passes changes of pods to the clients that watch them.

Each watch has a queue of 100 events, as upstream. A client that does not read fast enough loses its
watch and nothing else: the writer never waits, and the other watches notice nothing.

A watch remembers the pods that its client knows. So a client gets ADDED once for each pod, before
any other event of it, and DELETED for each pod that it knows. Upstream sends ADDED twice for a pod
without a status during the initial list, and no DELETED to a watch that began after its pod ended.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass

import trio
from lightkube.models.core_v1 import Pod

from kubelet_trio.model import Meter, PodUid, is_terminal

QUEUE = 100  # events; WatchPods in pkg/kubelet/apis/pods/server.go
_LAST_EVENTS = 30.0  # seconds in which a client may still read what was queued for it


class PodEventType(enum.Enum):
    """The types of events of pods, with the numbers of EventType."""

    ADDED = 1
    MODIFIED = 2
    DELETED = 3


@dataclass(frozen=True, slots=True)
class PodEvent:
    """One change of one pod."""

    type: PodEventType
    pod: Pod


class PodWatch:
    """One client's watch.

    Attributes:
        initial: the pods when the watch began, by UID.
        scope: in which the client is sent to; cancelled some time after the watch has lost.
    """

    def __init__(self, pods: Mapping[PodUid, Pod]) -> None:
        self.initial = deque(pods[uid] for uid in sorted(pods))
        self.scope = trio.CancelScope()
        self._known = dict(pods)
        # Of these DELETED means that they are gone: their end was before the watch.
        self._ended = {uid for uid, pod in pods.items() if is_terminal(pod.status)}
        self._send, self._receive = trio.open_memory_channel[PodEvent](QUEUE)

    async def next_event(self) -> PodEvent | None:
        """Wait for a change; None once the client was too slow and has got what was queued."""
        try:
            return await self._receive.receive()
        except trio.EndOfChannel:
            return None

    def close(self) -> None:
        self._send.close()
        self._receive.close()

    def note(self, uid: PodUid, pod: Pod | None, *, is_finished: bool) -> bool:
        """Queue the event that a pod's state makes for this client, if any.

        Args:
            uid: of the pod.
            pod: with its status; None if it is gone from the node.
            is_finished: nothing of it runs, now or later.

        Returns False if the queue is full: the client has lost its watch.
        """
        known = self._known.get(uid)
        event = None
        if pod is None or is_finished:
            if known is not None and (pod is None or uid not in self._ended):
                del self._known[uid]
                self._ended.discard(uid)
                event = PodEvent(PodEventType.DELETED, known)
        elif known is None:
            event = PodEvent(PodEventType.ADDED, pod)
        elif known is not pod and known != pod:
            event = PodEvent(PodEventType.MODIFIED, pod)
        if event is None:
            return True
        if event.type is not PodEventType.DELETED:
            self._known[uid] = event.pod
        try:
            self._send.send_nowait(event)
        except trio.WouldBlock:
            self._send.close()
            self._known.clear()
            self.scope.deadline = trio.current_time() + _LAST_EVENTS
            return False
        return True


class PodWatches:
    """The watches of one agent."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._open: set[PodWatch] = set()

    @contextmanager
    def watching(self, pods: Mapping[PodUid, Pod]) -> Iterator[PodWatch]:
        """Open a watch that begins with these pods, the newest of the status store."""
        watch = PodWatch(pods)
        self._open.add(watch)
        try:
            yield watch
        finally:
            self._open.discard(watch)
            watch.close()

    def changed(self, pods: Mapping[PodUid, Pod | None], finished: Set[PodUid]) -> None:
        """Tell all watches of pods whose status is new, None for one that is gone. Never blocks.

        Args:
            pods: by UID.
            finished: the UIDs of pods of which nothing runs any more.
        """
        for watch in tuple(self._open):
            for uid, pod in pods.items():
                if not watch.note(uid, pod, is_finished=uid in finished):
                    self._open.discard(watch)
                    self._meter.count("kubelet_pod_watch_events_dropped_total")
                    break
