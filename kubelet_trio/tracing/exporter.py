"""Sends spans to a receiver of OTLP over gRPC, on the agent's own client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import trio
from opentelemetry.sdk.trace import ReadableSpan

from kubelet_trio.grpc import Channel, Dial, GRPCError, Status
from kubelet_trio.tracing.encode import encode_spans
from kubelet_trio.tracing.generated.opentelemetry.proto.collector.trace.v1.client import (
    TraceServiceStub,
)

_TIMEOUT = 10.0  # seconds for a request, as in the Go exporter
# What the specification of OTLP calls retryable.
_TEMPORARY = frozenset(
    {
        Status.CANCELLED,
        Status.DEADLINE_EXCEEDED,
        Status.RESOURCE_EXHAUSTED,
        Status.ABORTED,
        Status.OUT_OF_RANGE,
        Status.UNAVAILABLE,
        Status.DATA_LOSS,
    }
)


class ExportError(Exception):
    """Spans did not arrive. `is_temporary`: the same request may succeed later."""

    def __init__(self, message: str, *, is_temporary: bool) -> None:
        super().__init__(message)
        self.is_temporary = is_temporary


class SpanReceiver(Protocol):
    """Where spans go: a receiver of OTLP, or a test's."""

    async def run(self, *, task_status: trio.TaskStatus[None] = ...) -> None:
        """Own the connection until cancelled; ready at once."""
        ...

    async def export(self, spans: Sequence[ReadableSpan]) -> tuple[int, str]:
        """Send spans; return how many the receiver has refused, and why.

        Raises `ExportError`.
        """
        ...


class OtlpReceiver:
    """A receiver of OTLP/gRPC without TLS, as the Go kubelet has it."""

    def __init__(self, target: str | Dial, version: str) -> None:
        self._channel = Channel(target)
        self._stub = TraceServiceStub(self._channel)
        self._scope = "kubelet-trio", version

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Own the connection until cancelled; it is made with the first spans."""
        await self._channel.run(task_status=task_status)

    async def export(self, spans: Sequence[ReadableSpan]) -> tuple[int, str]:
        """Send spans of one resource. Raises `ExportError`."""
        request = encode_spans(spans[0].resource, self._scope, spans)
        try:
            answer = await self._stub.export(request, timeout=_TIMEOUT)
        except GRPCError as exc:
            text = f"{exc.status.name}: {exc.message}"
            raise ExportError(text, is_temporary=exc.status in _TEMPORARY) from exc
        partial = answer.partial_success
        return (partial.rejected_spans, partial.error_message) if partial is not None else (0, "")
