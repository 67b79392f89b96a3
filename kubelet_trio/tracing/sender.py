"""The child `tracing` of the agent's tree: exports the spans that wait in the queue.

It never holds up what is traced. While the receiver is away it tries again with a growing delay;
the queue fills up, and spans are dropped and counted. At the agent's end it sends what is left,
within a few seconds.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

import trio

from kubelet_trio.model import Backoff, Meter, get_logger
from kubelet_trio.supervision import ChildSpec, RestartPolicy
from kubelet_trio.tracing.exporter import ExportError, SpanReceiver
from kubelet_trio.tracing.queue import SpanQueue
from kubelet_trio.tracing.tracer import Tracer

log = get_logger()

EXPORTED = "kubelet_trio_spans_exported_total"
FLUSH_LIMIT = 5.0  # seconds for what is left at the agent's end
_MOST = 32  # spans of a request: encoding one takes 0.3 ms, in which nothing else runs
_FIRST_WAIT, _LONGEST_WAIT = 1.0, 30.0  # seconds between attempts
_GIVE_UP = 60.0  # seconds of failures after which the oldest spans are dropped
_POLICY = RestartPolicy(limit=None)  # what only shows the node never ends the agent


class Tracing:
    """Traces one agent: its `tracer` makes the spans, its `run` sends them."""

    name = "tracing"

    def __init__(self, tracer: Tracer, receiver: SpanReceiver, meter: Meter) -> None:
        self._tracer = tracer
        self._receiver = receiver
        self._meter = meter
        self._exporting = trio.CancelScope()
        self._is_ending = False
        self._failing_since: float | None = None

    @property
    def _queue(self) -> SpanQueue:
        return self._tracer.queue

    def active(self) -> AbstractContextManager[None]:
        """Trace what this task does in the block, and the tasks that it starts."""
        return self._tracer.active()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Export until `stop` is called, and then the rest; ready at once."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self._receiver.run)
            task_status.started()
            with trio.CancelScope() as self._exporting:
                while not self._is_ending:
                    await self._queue.wait_due()
                    await self._send_all()
            await self._flush()
            nursery.cancel_scope.cancel()

    def stop(self) -> None:
        """Send what is left, and end. Never blocks."""
        self._is_ending = True
        self._exporting.cancel(reason="the agent ends")

    def as_spec(self) -> ChildSpec:
        """Return the spec of this child."""
        return ChildSpec(
            self.name, self.run, policy=_POLICY, stop=self.stop, stop_grace=FLUSH_LIMIT + 1.0
        )

    async def _send_all(self) -> None:
        """Send all that waits; wait after a failure, which may be over then."""
        backoff = Backoff(_FIRST_WAIT, _LONGEST_WAIT, jitter=0.2)
        while len(self._queue):
            if await self._send():
                backoff.reset()
            else:
                await trio.sleep(backoff.next_delay())

    async def _send(self) -> bool:
        """Send the oldest spans; return False if that is to be tried again later."""
        spans = self._queue.oldest(_MOST)
        try:
            refused, why = await self._receiver.export(spans)
        except ExportError as exc:
            return self._failed(len(spans), exc)
        if self._failing_since is not None:
            log.info("tracing.resumed")
            self._failing_since = None
        self._queue.done(len(spans))
        self._queue.drop(refused, "refused")
        if why:
            log.warning("tracing.refused", spans=refused, error=why)
        self._meter.count(EXPORTED, by=len(spans) - refused)
        return True

    def _failed(self, count: int, exc: ExportError) -> bool:
        now = trio.current_time()
        if self._failing_since is None:
            self._failing_since = now
            log.warning("tracing.export_failed", error=str(exc), effect="spans wait, or are lost")
        if exc.is_temporary and now - self._failing_since < _GIVE_UP:
            return False
        self._queue.done(count)
        self._queue.drop(count, "failed")
        return not exc.is_temporary

    async def _flush(self) -> None:
        with trio.move_on_after(FLUSH_LIMIT):
            while len(self._queue):
                if not await self._send():
                    break
        left = len(self._queue)
        if left:
            self._queue.done(left)
            self._queue.drop(left, "agent_ended")
            log.warning("tracing.spans_lost", spans=left, reason="the agent has ended")
