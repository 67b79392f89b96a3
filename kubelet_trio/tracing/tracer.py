"""Makes spans with the OpenTelemetry SDK. Loaded only when tracing is configured.

The SDK makes the ids, samples, and bounds a span's size. Its processors and exporters with threads
are not used (see `queue` and `sender`), and none of its global state.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import Token
from types import TracebackType

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased, Sampler, TraceIdRatioBased
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from kubelet_trio.model import WallClock
from kubelet_trio.tracing.queue import SpanQueue
from kubelet_trio.tracing.seam import (
    NO_SPAN,
    Attributes,
    AttributeValue,
    Place,
    Span,
    SpanKind,
    place,
)

CANCELLED = "kubelet_trio.cancelled"
_MILLION = 1_000_000
_KINDS = {
    SpanKind.INTERNAL: trace.SpanKind.INTERNAL,
    SpanKind.SERVER: trace.SpanKind.SERVER,
    SpanKind.CLIENT: trace.SpanKind.CLIENT,
}
_LIMITS = SpanLimits(max_span_attributes=64, max_span_attribute_length=4096, max_events=16)
_W3C = TraceContextTextMapPropagator()
# Else each malformed `tracestate` of a caller would be a line of the log, as it is.
logging.getLogger("opentelemetry.trace.span").disabled = True
_LONGEST_ERROR = 1024  # characters


class Tracer:
    """Makes the spans of one agent, and hands those that have ended to a queue."""

    def __init__(
        self, node_name: str, rate: int, version: str, clock: WallClock, queue: SpanQueue
    ) -> None:
        """Make a tracer, which has no effect before `active`.

        Args:
            node_name: whose spans they are.
            rate: traces that are sampled, of a million that begin here.
            version: of this agent.
            clock: the times of spans.
            queue: takes those that have ended.
        """
        provider = TracerProvider(
            sampler=sampler(rate),
            # As newTracer in cmd/kubelet/app/server.go: service.name, and host.name.
            resource=Resource(
                {
                    "service.name": "kubelet",
                    "service.version": version,
                    "service.instance.id": node_name,
                    "host.name": node_name,
                    "k8s.node.name": node_name,
                    "telemetry.sdk.language": "python",
                    "telemetry.sdk.name": "opentelemetry",
                }
            ),
            shutdown_on_exit=False,
            meter_provider=NoOpMeterProvider(),
            span_limits=_LIMITS,
        )
        provider.add_span_processor(queue)
        self._tracer = provider.get_tracer("kubelet-trio", version)
        self._clock = clock
        self.queue = queue

    @contextmanager
    def active(self) -> Iterator[None]:
        """Trace what this task does in the block, and the tasks that it starts."""
        token = place.set(self)
        try:
            yield
        finally:
            place.reset(token)

    def now(self) -> int:
        """Return the time in Unix nanoseconds."""
        return int(self._clock.time() * 1e9)

    def open(
        self,
        name: str,
        kind: SpanKind,
        describe: Callable[[], Attributes] | None,
        *,
        parent: Mapping[str, str] | None = None,
        is_tentative: bool = False,
    ) -> Span:
        """Return a span that begins a trace, or continues the one of `parent`."""
        context = _W3C.extract(dict(parent), Context()) if parent is not None else Context()
        return self.open_below(context, name, kind, describe, is_tentative=is_tentative)

    def open_below(
        self,
        context: Context,
        name: str,
        kind: SpanKind,
        describe: Callable[[], Attributes] | None,
        *,
        is_tentative: bool = False,
    ) -> Span:
        """Return a span below the one of a context of the SDK."""
        made = self._tracer.start_span(name, context, _KINDS[kind], start_time=self.now())
        if describe is not None and made.is_recording():
            made.set_attributes(describe())
        return _OpenSpan(self, made, is_tentative=is_tentative)

    def headers(self) -> tuple[tuple[str, str], ...]:
        """Return none: there is no span."""
        return ()

    def current(self) -> Span:
        """Return a span that does nothing."""
        return NO_SPAN


def sampler(rate: int) -> Sampler:
    """Return upstream's sampler: the parent decides, and of the others `rate` of a million."""
    # NewProvider in k8s.io/component-base/tracing.
    root = TraceIdRatioBased(rate / _MILLION) if rate > 0 else ALWAYS_OFF
    return ParentBased(root)


class _OpenSpan:
    """A span of the SDK, and the place of the spans below it."""

    __slots__ = (
        "_context",
        "_expected",
        "_has_failed",
        "_is_tentative",
        "_span",
        "_token",
        "_tracer",
    )

    def __init__(self, tracer: Tracer, span: trace.Span, *, is_tentative: bool) -> None:
        self._tracer = tracer
        self._span = span
        self._context: Context | None = None
        self._token: Token[Place | None] | None = None
        self._expected: BaseException | None = None
        self._has_failed = False
        self._is_tentative = is_tentative and span.is_recording()

    def __enter__(self) -> _OpenSpan:
        if self._is_tentative:
            self._tracer.queue.hold(self._trace_id)
        self._token = place.set(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._token is not None
        place.reset(self._token)
        if exc is not None and exc is not self._expected:
            self._note(exc)
        self._span.end(self._tracer.now())
        if self._is_tentative:
            self._tracer.queue.forget(self._trace_id)

    @property
    def _trace_id(self) -> int:
        return self._span.get_span_context().trace_id

    def _note(self, exc: BaseException) -> None:
        if not isinstance(exc, Exception):  # Trio's Cancelled, alone or in a group
            self._span.set_attribute(CANCELLED, True)
            return
        text = str(exc)[:_LONGEST_ERROR]
        # Without a stack: it shows nothing that the span and its parents do not.
        about = {"exception.type": type(exc).__name__, "exception.message": text}
        self._span.add_event("exception", about, self._tracer.now())
        if not self._has_failed:
            self.fail(text)

    def set(self, key: str, value: AttributeValue) -> None:
        """Add an attribute."""
        self._span.set_attribute(key, value)

    def rename(self, name: str) -> None:
        """Give it another name."""
        self._span.update_name(name)

    def fail(self, text: str) -> None:
        """Record that what it measures has failed."""
        self._has_failed = True
        self._span.set_status(trace.Status(trace.StatusCode.ERROR, text[:_LONGEST_ERROR]))

    def expect(self, exc: BaseException) -> None:
        """Do not count an exception that is about to leave the block as a failure."""
        self._expected = exc

    def keep(self) -> None:
        """Export it, and what is below it."""
        if self._is_tentative:
            self._is_tentative = False
            self._tracer.queue.release(self._trace_id)

    # The place of the spans below it

    def open(
        self,
        name: str,
        kind: SpanKind,
        describe: Callable[[], Attributes] | None,
        *,
        parent: Mapping[str, str] | None = None,
        is_tentative: bool = False,
    ) -> Span:
        """Return a span below this one; one that has a parent of its own, or is tentative, not."""
        if parent is not None or is_tentative:
            return self._tracer.open(name, kind, describe, parent=parent, is_tentative=is_tentative)
        return self._tracer.open_below(self._as_context(), name, kind, describe)

    def headers(self) -> tuple[tuple[str, str], ...]:
        """Return the headers that name this span as the parent."""
        found: dict[str, str] = {}
        _W3C.inject(found, self._as_context())
        # The sampled flag alone: to the Go SDK of older runtimes a traceparent with the random flag
        # of W3C's level 2 is malformed (`opts[0] > 2` in propagation/trace_context.go).
        if "traceparent" in found:
            is_sampled = self._span.get_span_context().trace_flags.sampled
            found["traceparent"] = found["traceparent"][:-2] + ("01" if is_sampled else "00")
        return tuple(found.items())

    def current(self) -> Span:
        """Return this span."""
        return self

    def _as_context(self) -> Context:
        if self._context is None:
            self._context = trace.set_span_in_context(self._span, Context())
        return self._context
