"""Spans as trees, for tests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import StatusCode

from kubelet_trio.model import Meter
from kubelet_trio.testing import FakeReceiver, TrioClock
from kubelet_trio.tracing import Tracing, TracingConfig, make_tracing
from kubelet_trio.tracing.queue import SpanQueue
from kubelet_trio.tracing.tracer import Tracer

ALWAYS = 1_000_000
RUNTIME = "runtime.v1.RuntimeService/"


@dataclass(slots=True)
class Traced:
    """The tracing of an agent, with what it counts and what has arrived."""

    tracing: Tracing
    receiver: FakeReceiver
    meter: Meter

    def counted(self, name: str) -> dict[tuple[str, ...], float]:
        return {labels: value for labels, value in self.meter.counters(name) if value}


def traced(rate: int = ALWAYS) -> Traced:
    """Return tracing to a fake receiver."""
    receiver, meter = FakeReceiver(), Meter()
    config = TracingConfig("node", rate=rate, version="1")
    return Traced(make_tracing(config, TrioClock(), meter, receiver), receiver, meter)


def tracer(rate: int = ALWAYS, capacity: int = 2048) -> tuple[Tracer, SpanQueue]:
    """Return a tracer and the queue that its spans end in."""
    queue = SpanQueue(Meter(), capacity)
    return Tracer("node", rate, "1", TrioClock(), queue), queue


def ended(queue: SpanQueue) -> list[ReadableSpan]:
    return list(queue.oldest(len(queue)))


@dataclass(slots=True)
class Tree:
    """A span and those below it, in the order in which they began."""

    span: ReadableSpan
    below: list[Tree] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.span.name

    @property
    def attributes(self) -> dict[str, object]:
        return dict(self.span.attributes or {})

    @property
    def has_failed(self) -> bool:
        return self.span.status.status_code is StatusCode.ERROR

    @property
    def is_root(self) -> bool:
        return self.span.parent is None

    def lines(self, depth: int = 0) -> Iterator[str]:
        yield "  " * depth + self.name
        for tree in self.below:
            yield from tree.lines(depth + 1)

    def find(self, name: str) -> Tree:
        (found,) = [tree for tree in self.every() if tree.name == name]
        return found

    def every(self) -> Iterator[Tree]:
        yield self
        for tree in self.below:
            yield from tree.every()


def trees(spans: Iterable[ReadableSpan]) -> list[Tree]:
    """Return the spans as trees; the roots are those whose parents are not among them."""
    known = {span.context.span_id: Tree(span) for span in spans if span.context is not None}
    roots = []
    for tree in sorted(known.values(), key=lambda tree: _order(tree.span)):
        parent = tree.span.parent
        if parent is None or parent.span_id not in known:
            roots.append(tree)
        else:
            known[parent.span_id].below.append(tree)
    return roots


def drawn(tree: Tree) -> str:
    """Return the names of a tree, indented; CRI calls without their service."""
    return "\n".join(tree.lines()).replace("runtime.v1.", "")


def _order(span: ReadableSpan) -> tuple[int, int]:
    """In virtual time spans begin together; of these the longest is shown first."""
    return span.start_time or 0, -(span.end_time or 0)
