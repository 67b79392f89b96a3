"""Sends the node's events to the API server: correlated, then created or patched, one at a time.

The recorder's task never waits: occurrences go into a bounded queue, whose oldest is dropped and
counted when it is full. An event that the server refuses is dropped. While the server is
unavailable the current event is retried, twelve times at most.
"""

from __future__ import annotations

import contextlib
import random
from collections import deque
from typing import Any

import trio
from lightkube.models import core_v1, meta_v1

from kubelet_trio.events.correlator import Correlator, ServerEvent
from kubelet_trio.events.ring import event_object
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

_QUEUE_SIZE = 1000
_TRIES = 12  # client-go's maxTriesPerEvent
_PAUSE = 10.0  # seconds between tries: client-go's sleepDuration
_TERMINATING = "NamespaceTerminating"  # a cause of API servers' refusals
_FLUSH_LIMIT = 2.0  # seconds after `stop` for the rest of the queue


class ApiEvents:
    """Sends events. Call `put` from the Trio thread only; one task runs it."""

    def __init__(
        self,
        api: KubeApi,
        host: str,
        *,
        component: str = "kubelet",
        qps: int = 0,
        burst: int = 100,
    ) -> None:
        """Send nothing before `run` runs.

        Args:
            api: the API server.
            host: the node.
            component: the events' source.
            qps: requests a second (`eventRecordQPS`); 0 is no limit.
            burst: requests at once above it.
        """
        self._api = api
        # To TokenBucket 0 means client-go's default, and a negative rate no limit.
        self._bucket = TokenBucket(qps or -1, burst)
        self._source = core_v1.EventSource(component=component, host=host)
        self._correlator = Correlator()
        self._queue: deque[Event] = deque()
        self._wake = Bell()
        self._is_stopping = False
        self.dropped = 0

    def put(self, event: Event) -> None:
        """Queue one occurrence; if the queue is full, drop its oldest."""
        self._queue.append(event)
        if len(self._queue) > _QUEUE_SIZE:
            self._queue.popleft()
            self.dropped += 1
        self._wake.ring()

    def stop(self) -> None:
        """Let `run` end when the queue is empty, or after 2 s."""
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
        record = self._correlator.correlate(self._queue.popleft())
        if record is None:
            return
        await self._bucket.take()
        for attempt in range(_TRIES):
            try:
                await self._send(record)
            except KubeUnavailableError as exc:
                log.debug("event.unavailable", error=str(exc), attempt=attempt)
            except KubeError as exc:
                # 4xx: the server will refuse it again (client-go drops it as well).
                if exc.code < 500 and exc.code != 429:
                    reason = record.event.reason
                    # That pods end in a namespace that is being removed is no news to anyone.
                    if _TERMINATING in exc.causes:
                        log.debug("event.unwanted", reason=reason, error=str(exc))
                    else:
                        log.warning("event.refused", reason=reason, error=str(exc))
                    return
            else:
                return
            if self._is_stopping:
                return
            # The first pause is random, as in client-go: not all nodes retry at the same moment.
            await self._pause(_PAUSE * (random.random() if attempt == 0 else 1.0))
        self.dropped += 1

    async def _pause(self, seconds: float) -> None:
        with trio.move_on_after(seconds):
            while not self._is_stopping:
                self._wake.clear()
                await self._wake.wait_ring()

    async def _send(self, record: ServerEvent) -> None:
        namespace = record.event.involved.namespace or "default"
        if record.count > 1:
            try:
                await self._api.patch(
                    core_v1.Event, record.name, _count_patch(record), namespace=namespace
                )
            except NotFoundError:  # it has expired: API servers keep events for an hour
                renewed = self._correlator.forget(record.key)
                record = renewed if renewed is not None else record
            else:
                return
        # It exists if an earlier try succeeded and only the reply was lost.
        with contextlib.suppress(AlreadyExistsError):
            await self._api.create(self._as_api(record, namespace), namespace=namespace)

    def _as_api(self, record: ServerEvent, namespace: str) -> core_v1.Event:
        annotations = dict(record.event.annotations or {}) or None
        meta = meta_v1.ObjectMeta(name=record.name, namespace=namespace, annotations=annotations)
        return event_object(
            record.event,
            meta,
            self._source,
            count=record.count,
            first=record.first,
            last=record.event.time,
        )


def _count_patch(record: ServerEvent) -> dict[str, Any]:
    return {
        "count": record.count,
        "lastTimestamp": to_datetime(record.event.time).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "message": record.event.message,
    }
