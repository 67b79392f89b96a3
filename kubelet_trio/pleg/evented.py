"""Listens to the runtime's events and queries the status of the object that each one names.

An event only triggers a query; no status is taken from it, since it may come without one. There is
no query if the status is known already or an exit watcher will report the exit.

The Go kubelet uses events only with its gate EventedPLEG, which is off by default. There they
replace the relist's answers, and five errors in a row disable them. Here they only make queries
earlier, so they are used with every runtime that has them. While there is no stream of events, the
relist runs as often as without them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import trio

from kubelet_trio.cri import Runtime, RuntimeCallError, UnsupportedCallError, v1
from kubelet_trio.model import (
    Backoff,
    ContainerId,
    Meter,
    PodUid,
    SandboxId,
    WallClock,
    get_logger,
)
from kubelet_trio.pleg.inspector import Inspector, observe_query
from kubelet_trio.pleg.state import PlegState
from kubelet_trio.pleg.table import Queries

log = get_logger()

# s from an event, other than a stop, to its query. Most events follow from a call of a pod's
# worker, which queries the status itself: by then the event needs no query any more.
EVENT_DELAY = 1.0
FIRST_BACKOFF = 1.0  # s
LONGEST_BACKOFF = 30.0  # s


@dataclass(frozen=True, slots=True)
class _Lost:
    """How a stream of events ended, and whether it brought any."""

    error: str
    had_events: bool


class EventListener:
    """Listens to GetContainerEvents, if the runtime has it."""

    def __init__(
        self,
        runtime: Runtime,
        state: PlegState,
        inspector: Inspector,
        *,
        is_guarded: Callable[[ContainerId], bool],
        relist_soon: Callable[[], None],
        on_live: Callable[[], None],
        meter: Meter | None,
        clock: WallClock,
    ) -> None:
        """Take what is needed to listen.

        Args:
            runtime: the container runtime.
            state: what is known already.
            inspector: queries the runtime.
            is_guarded: whether an exit watcher will report a container's exit.
            relist_soon: called for events about unknown objects.
            on_live: called whenever `live` changes.
            meter: counts streams that open and break, and measures events and queries.
            clock: tells how old an event is.
        """
        self._runtime = runtime
        self._state = state
        self._inspector = inspector
        self._is_guarded = is_guarded
        self._relist_soon = relist_soon
        self._on_live = on_live
        self._scheduled: set[str] = set()  # objects with a query to come
        self._meter = meter
        self._clock = clock
        self.live = False  # whether a stream brings events

    async def run(self) -> None:
        """Listen, reconnecting with a back-off, unless the runtime has no events."""
        backoff = Backoff(FIRST_BACKOFF, LONGEST_BACKOFF)
        self._scheduled.clear()
        async with trio.open_nursery() as tasks:
            while (lost := await self._run_stream(tasks)) is not None:
                if lost.had_events:
                    backoff.reset()
                delay = backoff.next_delay()
                log.debug("pleg.events_lost", error=lost.error, retry_in=delay)
                await trio.sleep(delay)

    async def _run_stream(self, tasks: trio.Nursery) -> _Lost | None:
        """Listen to one stream to its end; return None if the runtime has none."""
        error = "the runtime has ended it"
        try:
            await self._listen(tasks)
        except UnsupportedCallError:
            log.info("pleg.events_unsupported")
            return None
        except RuntimeCallError as exc:
            error = str(exc)
        finally:
            # Also after a clean end (a runtime that shuts down in order ends it with OK): from now
            # on no event reports an exit, so the relist must run often.
            had_events = self.live
            self._set_live(False)
        self._count("kubelet_evented_pleg_connection_error_count")
        return _Lost(error, had_events)

    async def _listen(self, tasks: trio.Nursery) -> None:
        async with self._runtime.container_events() as events:
            async for event in events:
                if not self.live:
                    self._count("kubelet_evented_pleg_connection_success_count")
                    # Events before this one may have been missed: the relist finds their changes.
                    self._set_live(True)
                    self._relist_soon()
                self._observe_age(event)
                self._schedule(event, tasks)

    def _observe_age(self, event: v1.ContainerEventResponse) -> None:
        # updateLatencyMetric in pkg/kubelet/pleg/evented.go; the runtime's clock is this one.
        if self._meter is not None and event.created_at:
            age = max(self._clock.time() - event.created_at / 1e9, 0.0)
            self._meter.observe("kubelet_evented_pleg_connection_latency_seconds", age)

    def _count(self, name: str) -> None:
        if self._meter is not None:
            self._meter.count(name)

    def _set_live(self, live: bool) -> None:
        if self.live is not live:
            self.live = live
            self._on_live()

    def _schedule(self, event: v1.ContainerEventResponse, tasks: trio.Nursery) -> None:
        object_id = event.container_id
        delay = (
            0.0
            if event.container_event_type == v1.ContainerEventType.CONTAINER_STOPPED_EVENT
            else EVENT_DELAY
        )
        if not object_id or object_id in self._scheduled:
            return
        if not self._is_guarded(ContainerId(object_id)):
            self._scheduled.add(object_id)
            tasks.start_soon(self._handle, object_id, event.container_event_type, delay)

    async def _handle(self, object_id: str, kind: v1.ContainerEventType, delay: float) -> None:
        await trio.sleep(delay)
        self._scheduled.discard(object_id)
        uid = self._state.pod_of(object_id)
        gone = kind == v1.ContainerEventType.CONTAINER_DELETED_EVENT
        if uid is None:
            if not gone and not self._state.is_gone(object_id):
                self._relist_soon()
            return
        # A created or started event adds nothing if the status was queried since.
        is_stop = kind == v1.ContainerEventType.CONTAINER_STOPPED_EVENT
        is_known = not is_stop and self._state.has_status(object_id)
        if gone or not (is_known or self._state.is_stopped(object_id)):
            await self._ask(uid, object_id)

    async def _ask(self, uid: PodUid, object_id: str) -> None:
        queries = Queries()
        if self._state.is_sandbox(object_id):
            queries.sandboxes.add(SandboxId(object_id))
        else:
            queries.containers.add(ContainerId(object_id))
        began = trio.current_time()
        errors = await self._inspector.ask(uid, queries)
        observe_query(self._meter, began)
        if errors:
            self._state.mark_dirty(uid, errors[0])
            self._relist_soon()
        self._state.publish(uid)
