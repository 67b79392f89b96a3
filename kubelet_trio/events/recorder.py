"""Records events: a bounded channel, and the task that empties it into the ring.

`emit` never waits and never fails. If the channel is full, the oldest occurrence is dropped and
counted: the latest events explain most. Only the task writes to the ring. If the task is restarted,
the channel keeps its contents.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping

import trio

from kubelet_trio.events.ring import EventRing
from kubelet_trio.model import Event, EventType, ObjectRef, WallClock, get_logger

log = get_logger()


class EventRecorder:
    """The `EventSink` of the agent. Call `emit` from the Trio thread only."""

    def __init__(
        self,
        ring: EventRing,
        clock: WallClock,
        *,
        forward: Callable[[Event], None] | None = None,
        waiting: int = 1000,
    ) -> None:
        """Take the seams.

        Args:
            ring: keeps the newest events.
            clock: wall time.
            forward: passes each event on, to an API server; never blocks.
            waiting: how many events may wait to be folded.
        """
        self.ring = ring
        self.dropped = 0
        self._clock = clock
        self._forward = forward
        self._send, self._receive = trio.open_memory_channel[Event](waiting)

    def emit(self, involved: ObjectRef, type_: EventType, reason: str, message: str) -> None:
        """Record one occurrence; if the channel is full, drop its oldest."""
        self._put(Event(involved, type_, reason, message, self._clock.time()))

    def emit_annotated(
        self,
        involved: ObjectRef,
        type_: EventType,
        reason: str,
        message: str,
        annotations: Mapping[str, str],
    ) -> None:
        """Record one occurrence as `emit` does, with annotations for its event."""
        self._put(Event(involved, type_, reason, message, self._clock.time(), annotations))

    def _put(self, event: Event) -> None:
        with contextlib.suppress(trio.WouldBlock):
            self._send.send_nowait(event)
            return
        # Full. Nothing can run in between: these calls do not block, and all is in one thread.
        self._receive.receive_nowait()
        self.dropped += 1
        self._send.send_nowait(event)

    @property
    def waiting(self) -> int:
        """The number of occurrences in the channel."""
        return self._send.statistics().current_buffer_used

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Move occurrences into the ring until cancelled; then empty the channel."""
        task_status.started()
        try:
            while True:
                self._fold(await self._receive.receive())
        finally:
            self.flush()

    def flush(self) -> None:
        """Move all waiting occurrences into the ring, now."""
        with contextlib.suppress(trio.WouldBlock):
            while True:
                self._fold(self._receive.receive_nowait())

    def _fold(self, event: Event) -> None:
        count = self.ring.fold(event)
        if self._forward is not None:
            self._forward(event)
        involved = event.involved
        # Repeats are logged at debug level only: the count in the event has them.
        log_first = log.warning if event.type == "Warning" else log.info
        write = log_first if count == 1 else log.debug
        write(
            "event",
            object=f"{involved.kind}/{involved.namespace}/{involved.name}".replace("//", "/"),
            field_path=involved.field_path,
            type=event.type,
            reason=event.reason,
            message=event.message,
            count=count,
        )
