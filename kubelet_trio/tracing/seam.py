"""Spans where the agent works; without a configured tracing they cost a look at one variable.

    with span("startContainer", container, describe) as opened:     describe(container) if recorded
        ...
        opened.set("k8s.container.restart_count", attempt)

The innermost open span of a task is in a context variable, so the tasks of a nursery, and what is
handed to another task for its caller (`cri.CallsInFlight`), continue it. An agent's tracing is set
in the task that runs its tree (`Tracing.active`): every child begins without a span, since a
supervisor starts it, and never the task that asked for it.

Only tasks of Trio open spans, not worker threads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from enum import IntEnum
from types import TracebackType
from typing import Protocol, TypeVar

AttributeValue = str | bool | int | float
Attributes = Mapping[str, AttributeValue]
T = TypeVar("T")


class SpanKind(IntEnum):
    """Whose work a span is, with OTLP's numbers."""

    INTERNAL = 1
    SERVER = 2
    CLIENT = 3


class Span(Protocol):
    """A span; the block of its `with` is what it measures.

    An exception that leaves the block makes it a failed span, and a cancellation a cancelled one.
    """

    def __enter__(self) -> Span: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

    def set(self, key: str, value: AttributeValue) -> None:
        """Add an attribute."""
        ...

    def rename(self, name: str) -> None:
        """Give it another name, which was not known at its start."""
        ...

    def fail(self, text: str) -> None:
        """Record that what it measures has failed, although no exception shows it."""
        ...

    def expect(self, exc: BaseException) -> None:
        """Do not count an exception that is about to leave the block as a failure."""
        ...

    def keep(self) -> None:
        """Export a tentative span, and those below it, after its end."""
        ...


class Place(Protocol):
    """Where spans are opened: an open span, or the agent itself."""

    def open(
        self,
        name: str,
        kind: SpanKind,
        describe: Callable[[], Attributes] | None,
        *,
        parent: Mapping[str, str] | None = None,
        is_tentative: bool = False,
    ) -> Span: ...

    def headers(self) -> tuple[tuple[str, str], ...]: ...

    def current(self) -> Span: ...


class _NoSpan:
    """The span of an agent without tracing. There is one, and it does nothing."""

    __slots__ = ()

    def __enter__(self) -> _NoSpan:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        pass

    def set(self, key: str, value: AttributeValue) -> None:
        pass

    def rename(self, name: str) -> None:
        pass

    def fail(self, text: str) -> None:
        pass

    def expect(self, exc: BaseException) -> None:
        pass

    def keep(self) -> None:
        pass


NO_SPAN: Span = _NoSpan()
place: ContextVar[Place | None] = ContextVar("kubelet_trio_tracing", default=None)


def span(
    name: str,
    about: T | None = None,
    describe: Callable[[T], Attributes] | None = None,
    kind: SpanKind = SpanKind.INTERNAL,
) -> Span:
    """Return a span below the task's current one, to be entered at once.

    Args:
        name: its name.
        about: what `describe` is called with.
        describe: returns the attributes; called only if the span is recorded.
        kind: whose work it is.
    """
    here = place.get()
    if here is None:
        return NO_SPAN
    return here.open(name, kind, _described(about, describe))


def tentative_span(
    name: str, about: T | None = None, describe: Callable[[T], Attributes] | None = None
) -> Span:
    """Return a span that is exported only if it is kept, and with it the spans below it.

    For what happens often and is of interest only if it fails. It begins a trace of its own.
    """
    here = place.get()
    if here is None:
        return NO_SPAN
    return here.open(name, SpanKind.INTERNAL, _described(about, describe), is_tentative=True)


def server_span(name: str, headers: Mapping[str, str]) -> Span:
    """Return the span of a request that this agent answers.

    `headers` are the request's, in lower case: its parent is the one in `traceparent` (W3C Trace
    Context), which also decides whether the span is sampled.
    """
    here = place.get()
    return NO_SPAN if here is None else here.open(name, SpanKind.SERVER, None, parent=headers)


def current_span() -> Span:
    """Return the innermost span of this task, to add to it; do not enter it."""
    here = place.get()
    return NO_SPAN if here is None else here.current()


def trace_headers() -> tuple[tuple[str, str], ...]:
    """Return the headers that tell a server the current span: `traceparent`, and `tracestate`."""
    here = place.get()
    return () if here is None else here.headers()


def _described(
    about: T | None, describe: Callable[[T], Attributes] | None
) -> Callable[[], Attributes] | None:
    if describe is None or about is None:
        return None
    function, argument = describe, about
    return lambda: function(argument)
