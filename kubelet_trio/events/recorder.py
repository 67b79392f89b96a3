"""Where every room reports what happened: a bounded channel, and the task that empties it.

`emit` never waits and never fails. While the recorder is held up the channel fills; then
the oldest occurrence is dropped and counted, since what happened last explains most.
Only the task folds, so the ring has one writer. If the task is restarted, what waited in
the channel is still there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping

import trio

from kubelet_trio.events.ring import EventRing
from kubelet_trio.model import Event, EventType, ObjectRef, WallClock, get_logger

log = get_logger()


class EventRecorder:
    """The `EventSink` of the agent. Call `emit` from the trio thread only."""

    def __init__(self, ring: EventRing, clock: WallClock, *, waiting: int = 1000) -> None:
        self.ring = ring
        self.dropped = 0
        self._clock = clock
        self.forward: Callable[[Event], None] | None = None  # to an API server; never blocks
        self._send, self._receive = trio.open_memory_channel[Event](waiting)

    def emit(self, involved: ObjectRef, type_: EventType, reason: str, message: str) -> None:
        """Report one occurrence; the oldest that waits is dropped if there is no room."""
        self._put(Event(involved, type_, reason, message, self._clock.time()))

    def emit_annotated(
        self,
        involved: ObjectRef,
        type_: EventType,
        reason: str,
        message: str,
        annotations: Mapping[str, str],
    ) -> None:
        """Report one occurrence as `emit` does, with annotations for its event."""
        self._put(Event(involved, type_, reason, message, self._clock.time(), annotations))

    def _put(self, event: Event) -> None:
        with contextlib.suppress(trio.WouldBlock):
            self._send.send_nowait(event)
            return
        self._receive.receive_nowait()
        self.dropped += 1
        self._send.send_nowait(event)

    @property
    def waiting(self) -> int:
        """How many events have not been folded yet."""
        return self._send.statistics().current_buffer_used

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Fold what is reported until cancelled; what waits by then is folded too."""
        task_status.started()
        try:
            while True:
                self._fold(await self._receive.receive())
        finally:
            self.flush()

    def flush(self) -> None:
        """Fold all that waits, now."""
        with contextlib.suppress(trio.WouldBlock):
            while True:
                self._fold(self._receive.receive_nowait())

    def _fold(self, event: Event) -> None:
        count = self.ring.fold(event)
        if self.forward is not None:
            self.forward(event)
        involved = event.involved
        first = log.warning if event.type == "Warning" else log.info
        say = first if count == 1 else log.debug
        say(
            "event",
            object=f"{involved.kind}/{involved.namespace}/{involved.name}".replace("//", "/"),
            field_path=involved.field_path,
            type=event.type,
            reason=event.reason,
            message=event.message,
            count=count,
        )
