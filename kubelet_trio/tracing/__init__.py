"""Traces of what the agent does: OpenTelemetry spans over OTLP/gRPC.

Other rooms use `span` and its kin, which cost next to nothing in an agent without tracing. All
else is loaded when tracing is configured: the SDK of OpenTelemetry is an optional package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kubelet_trio._deferred import names_on_demand
from kubelet_trio.tracing.about import CONTAINER, pod_attributes
from kubelet_trio.tracing.seam import (
    NO_SPAN,
    Attributes,
    Span,
    SpanKind,
    current_span,
    server_span,
    span,
    tentative_span,
    trace_headers,
)

if TYPE_CHECKING:
    from kubelet_trio.tracing.endpoint import EndpointError, check_endpoint
    from kubelet_trio.tracing.exporter import ExportError, SpanReceiver
    from kubelet_trio.tracing.sender import Tracing
    from kubelet_trio.tracing.setup import TracingConfig, make_tracing

_DEFERRED = {
    "EndpointError": "endpoint",
    "ExportError": "exporter",
    "SpanReceiver": "exporter",
    "Tracing": "sender",
    "TracingConfig": "setup",
    "check_endpoint": "endpoint",
    "make_tracing": "setup",
}

__all__ = [
    "CONTAINER",
    "NO_SPAN",
    "Attributes",
    "EndpointError",
    "ExportError",
    "Span",
    "SpanKind",
    "SpanReceiver",
    "Tracing",
    "TracingConfig",
    "check_endpoint",
    "current_span",
    "make_tracing",
    "pod_attributes",
    "server_span",
    "span",
    "tentative_span",
    "trace_headers",
]

__getattr__ = names_on_demand(__name__, _DEFERRED)
