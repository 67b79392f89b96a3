"""Spans of the SDK as OTLP messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.trace import SpanContext, SpanKind, StatusCode

from kubelet_trio.tracing.generated.opentelemetry.proto.collector.trace import v1

_KINDS = {SpanKind.INTERNAL: 1, SpanKind.SERVER: 2, SpanKind.CLIENT: 3}
_CODES = {StatusCode.UNSET: 0, StatusCode.OK: 1, StatusCode.ERROR: 2}
_HAS_IS_REMOTE, _IS_REMOTE = 0x100, 0x200  # of Span.flags, beside the W3C flags


def encode_spans(
    resource: Resource, scope: tuple[str, str], spans: Iterable[ReadableSpan]
) -> v1.ExportTraceServiceRequest:
    """Return spans of one resource and one scope (name and version) as a request."""
    name, version = scope
    scoped = v1.ScopeSpans(
        scope=v1.InstrumentationScope(name=name, version=version),
        spans=[_span(span, span.context) for span in spans if span.context is not None],
    )
    described = v1.Resource(attributes=_attributes(resource.attributes))
    return v1.ExportTraceServiceRequest(
        resource_spans=[v1.ResourceSpans(resource=described, scope_spans=[scoped])]
    )


def _span(span: ReadableSpan, context: SpanContext) -> v1.Span:
    parent, remote = span.parent, _HAS_IS_REMOTE
    if parent is not None and parent.is_remote:
        remote |= _IS_REMOTE
    return v1.Span(
        trace_id=context.trace_id.to_bytes(16, "big"),
        span_id=context.span_id.to_bytes(8, "big"),
        trace_state=context.trace_state.to_header(),
        parent_span_id=parent.span_id.to_bytes(8, "big") if parent is not None else b"",
        name=span.name,
        kind=_KINDS.get(span.kind, 0),
        start_time_unix_nano=span.start_time or 0,
        end_time_unix_nano=span.end_time or 0,
        attributes=_attributes(span.attributes or {}),
        dropped_attributes_count=span.dropped_attributes,
        events=[_event(event) for event in span.events],
        dropped_events_count=span.dropped_events,
        status=v1.SpanStatus(
            message=span.status.description or "", code=_CODES[span.status.status_code]
        ),
        flags=int(context.trace_flags) | remote,
    )


def _event(event: Event) -> v1.SpanEvent:
    return v1.SpanEvent(
        time_unix_nano=event.timestamp,
        name=event.name,
        attributes=_attributes(event.attributes or {}),
    )


def _attributes(attributes: Mapping[str, object]) -> list[v1.KeyValue]:
    return [v1.KeyValue(key=key, value=_value(value)) for key, value in attributes.items()]


def _value(value: object) -> v1.AnyValue:
    if isinstance(value, bool):  # before int, which it is too
        return v1.AnyValue(bool_value=value)
    if isinstance(value, int):
        return v1.AnyValue(int_value=value)
    if isinstance(value, float):
        return v1.AnyValue(double_value=value)
    return v1.AnyValue(string_value=str(value))
