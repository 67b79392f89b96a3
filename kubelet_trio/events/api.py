"""The node's events at the API server: correlated, then created or patched, one at a time.

The recorder's task hands over each occurrence and never waits: a bounded queue, of which the
oldest is dropped and counted. An event that the server refuses is dropped, as an event is
worth no more; while the server is away the one in hand is tried again, twelve times at the
most.
"""

from __future__ import annotations

import contextlib
import random
from collections import deque
from typing import Any

import trio
from lightkube.models import core_v1, meta_v1

from kubelet_trio.events.correlator import Correlator, Told
from kubelet_trio.events.object import event_object
from kubelet_trio.kube import (
    AlreadyExistsError,
    KubeApi,
    KubeError,
    KubeUnavailableError,
    NotFoundError,
    TokenBucket,
)
from kubelet_trio.model import Bell, Event, get_logger, to_datetime

log = get_logger()

_WAITING = 1000
_TRIES = 12
_PAUSE = 10.0  # seconds between tries, as client-go
_FLUSH_LIMIT = 2.0


class ApiEvents:
    """See the module. `put` from the trio thread only; one task runs it."""

    def __init__(
        self,
        api: KubeApi,
        host: str,
        *,
        component: str = "kubelet",
        qps: int = 0,
        burst: int = 100,
    ) -> None:
        """Args:
        api: the API server.
        host: the node.
        component: who reports.
        qps: requests a second (`eventRecordQPS`); 0 is no limit.
        burst: requests at once above it.
        """
        self._api = api
        self._bucket = TokenBucket(qps or -1, burst)
        self._source = core_v1.EventSource(component=component, host=host)
        self._correlator = Correlator()
        self._queue: deque[Event] = deque()
        self._wake = Bell()
        self._is_stopping = False
        self.dropped = 0

    def put(self, event: Event) -> None:
        """Take in one occurrence; the oldest that waits is dropped if there is no room."""
        self._queue.append(event)
        if len(self._queue) > _WAITING:
            self._queue.popleft()
            self.dropped += 1
        self._wake.ring()

    def stop(self) -> None:
        """Ask `run` to end once the queue is empty, or soon."""
        self._is_stopping = True
        self._wake.ring()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Send until cancelled."""
        task_status.started()
        while not self._is_stopping:
            self._wake.clear()
            if not self._queue:
                await self._wake.wait_ring()
                continue
            await self._send_next()
        with trio.move_on_after(_FLUSH_LIMIT):
            while self._queue:
                await self._send_next()

    async def _send_next(self) -> None:
        told = self._correlator.correlate(self._queue.popleft())
        if told is None:
            return
        await self._bucket.take()
        for attempt in range(_TRIES):
            try:
                await self._send(told)
            except KubeUnavailableError as exc:
                log.debug("event.unavailable", error=str(exc), attempt=attempt)
            except KubeError as exc:
                if exc.code < 500 and exc.code != 429:
                    log.warning("event.refused", reason=told.event.reason, error=str(exc))
                    return
            else:
                return
            if self._is_stopping:
                return
            # The first time at random: not every node comes back at the same moment.
            await self._pause(_PAUSE * (random.random() if attempt == 0 else 1.0))
        self.dropped += 1

    async def _pause(self, seconds: float) -> None:
        with trio.move_on_after(seconds):
            while not self._is_stopping:
                self._wake.clear()
                await self._wake.wait_ring()

    async def _send(self, told: Told) -> None:
        namespace = told.event.involved.namespace or "default"
        if told.count > 1:
            try:
                await self._api.patch(core_v1.Event, told.name, _counted(told), namespace=namespace)
            except NotFoundError:  # it has expired there
                anew = self._correlator.forget(told.key)
                told = anew if anew is not None else told
            else:
                return
        # A reply that was lost: it is there.
        with contextlib.suppress(AlreadyExistsError):
            await self._api.create(self._as_api(told, namespace), namespace=namespace)

    def _as_api(self, told: Told, namespace: str) -> core_v1.Event:
        annotations = dict(told.event.annotations or {}) or None
        meta = meta_v1.ObjectMeta(name=told.name, namespace=namespace, annotations=annotations)
        return event_object(
            told.event,
            meta,
            self._source,
            count=told.count,
            first=told.first,
            last=told.event.time,
        )


def _counted(told: Told) -> dict[str, Any]:
    return {
        "count": told.count,
        "lastTimestamp": to_datetime(told.event.time).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "message": told.event.message,
    }
