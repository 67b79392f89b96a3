"""The messages are OTLP's: opentelemetry-proto reads from them what the SDK has recorded."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan

from kubelet_trio.model import Meter, SystemClock
from kubelet_trio.tracing import SpanKind, server_span, span
from kubelet_trio.tracing.encode import encode_spans
from kubelet_trio.tracing.queue import SpanQueue
from kubelet_trio.tracing.tracer import Tracer
from tests.tracing.traces import ALWAYS, ended

PARENT = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
Value = str | bool | int | float
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
VALUES = st.one_of(TEXTS, st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(width=32))


def read(spans: list[ReadableSpan]) -> ExportTraceServiceRequest:
    """Return what a receiver understands."""
    sent = bytes(encode_spans(spans[0].resource, ("kubelet-trio", "1"), spans))
    understood: ExportTraceServiceRequest = ExportTraceServiceRequest.FromString(sent)
    return understood


def new_tracer() -> tuple[Tracer, SpanQueue]:
    queue = SpanQueue(Meter())
    return Tracer("node", ALWAYS, "1", SystemClock(), queue), queue


@given(TEXTS.filter(bool), st.dictionaries(TEXTS.filter(bool), VALUES, max_size=5), TEXTS)
def test_all_of_a_span_arrives(name: str, attributes: Mapping[str, Value], why: str) -> None:
    made, queue = new_tracer()
    with made.active(), server_span(name, PARENT):
        with span("below", kind=SpanKind.CLIENT) as opened:
            for key, value in attributes.items():
                opened.set(key, value)
            opened.fail(why)
    below, _ = spans = ended(queue)
    resource_spans = read(spans).resource_spans[0]
    told, served = resource_spans.scope_spans[0].spans
    assert below.context is not None
    assert below.parent is not None
    assert told.trace_id == served.trace_id == below.context.trace_id.to_bytes(16, "big")
    assert told.span_id == below.context.span_id.to_bytes(8, "big")
    assert told.parent_span_id == served.span_id == below.parent.span_id.to_bytes(8, "big")
    assert served.parent_span_id.hex() == "00f067aa0ba902b7"
    assert (served.name, told.name) == (name, "below")
    assert (served.kind, told.kind) == (served.SPAN_KIND_SERVER, told.SPAN_KIND_CLIENT)
    assert told.start_time_unix_nano == below.start_time
    assert told.end_time_unix_nano == below.end_time
    assert (told.status.code, told.status.message) == (told.status.STATUS_CODE_ERROR, why)
    assert told.flags & 0x3FF == 0x101  # sampled; a parent of this process
    assert served.flags & 0x3FF == 0x301  # a remote one
    found = {
        entry.key: getattr(entry.value, entry.value.WhichOneof("value") or "")
        for entry in told.attributes
    }
    assert repr(found) == repr({key: dict(below.attributes or {})[key] for key in found})
    assert len(found) == len(below.attributes or {})


def test_the_resource_and_the_scope_are_sent_once() -> None:
    made, queue = new_tracer()
    with made.active():
        for _ in range(3):
            with span("a"):
                pass
    (resource_spans,) = read(ended(queue)).resource_spans
    told = {entry.key: entry.value.string_value for entry in resource_spans.resource.attributes}
    assert told["service.name"] == "kubelet"
    assert told["service.instance.id"] == told["host.name"] == "node"
    (scoped,) = resource_spans.scope_spans
    assert (scoped.scope.name, scoped.scope.version) == ("kubelet-trio", "1")
    assert [sent.name for sent in scoped.spans] == ["a", "a", "a"]


def test_events_arrive() -> None:
    made, queue = new_tracer()
    error = ValueError("bad")
    try:
        with made.active(), span("a"):
            raise error
    except ValueError:
        pass
    (event,) = read(ended(queue)).resource_spans[0].scope_spans[0].spans[0].events
    told = {entry.key: entry.value.string_value for entry in event.attributes}
    assert told == {"exception.type": "ValueError", "exception.message": "bad"}
