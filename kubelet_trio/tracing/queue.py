"""Spans that have ended and wait to be exported: a bounded queue that drops instead of blocking.

A tentative span's trace is held back until the span ends: then it is queued as a whole, or
forgotten. Loaded only when tracing is configured.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice

import trio
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor

from kubelet_trio.model import Bell, Meter

DROPPED = "kubelet_trio_spans_dropped_total"
# The defaults of the Go SDK's batch processor.
CAPACITY = 2048
BATCH = 512
DELAY = 5.0  # seconds that a span waits for others
_MOST_HELD = 64  # spans of one tentative trace


class SpanQueue(SpanProcessor):
    """The SDK calls it for each span, in Trio's thread; `tracing` takes batches from it."""

    def __init__(self, meter: Meter, capacity: int = CAPACITY) -> None:
        self._meter = meter
        self._capacity = capacity
        self._spans: deque[ReadableSpan] = deque()
        self._held: dict[int, list[ReadableSpan]] = {}  # by trace
        self._bell = Bell()

    def __len__(self) -> int:
        return len(self._spans)

    # The SDK's interface

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Do nothing: only what has ended counts."""

    def on_end(self, span: ReadableSpan) -> None:
        """Queue a span, or hold it back with its trace."""
        held = self._held.get(span.context.trace_id) if span.context is not None else None
        if held is None:
            self._put(span)
        elif len(held) < _MOST_HELD:
            held.append(span)

    def shutdown(self) -> None:
        """Do nothing: the agent's tree exports the rest."""

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Do nothing: the agent's tree exports the rest."""
        return True

    # Tentative traces

    def hold(self, trace_id: int) -> None:
        """Hold the spans of a trace back, until `release` or `forget`."""
        self._held[trace_id] = []

    def release(self, trace_id: int) -> None:
        """Queue the spans that were held back."""
        for span in self._held.pop(trace_id, ()):
            self._put(span)

    def forget(self, trace_id: int) -> None:
        """Drop the spans that were held back; they do not count as dropped."""
        self._held.pop(trace_id, None)

    # The exporter's side

    async def wait_due(self) -> None:
        """Wait until there is a full batch, or the first span has waited for `DELAY`."""
        while not self._spans:
            await self._bell.wait_ring()
        with trio.move_on_after(DELAY):
            while len(self._spans) < BATCH:
                await self._bell.wait_ring()

    def oldest(self, most: int) -> Sequence[ReadableSpan]:
        """Return the oldest spans, which stay in the queue until `done`."""
        return list(islice(self._spans, most))

    def done(self, count: int) -> None:
        """Remove the oldest spans: they were exported, or given up."""
        for _ in range(count):
            self._spans.popleft()

    def drop(self, count: int, reason: str) -> None:
        """Count spans that were not exported."""
        if count:
            self._meter.count(DROPPED, (reason,), count)

    def _put(self, span: ReadableSpan) -> None:
        if len(self._spans) >= self._capacity:
            self.drop(1, "queue_full")
            return
        self._spans.append(span)
        if len(self._spans) in (1, BATCH):
            self._bell.ring()
