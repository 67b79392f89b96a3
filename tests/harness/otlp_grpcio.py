"""A receiver of OTLP on grpcio, with the messages of opentelemetry-proto: an independent peer."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as messages
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as services
from opentelemetry.proto.trace.v1.trace_pb2 import Span


@dataclass
class OtlpServer(services.TraceServiceServicer):
    """Keeps what it is sent; `fails` is the status of every answer, `refuses` spans not taken."""

    spans: list[Span] = field(default_factory=list)
    resources: list[dict[str, str]] = field(default_factory=list)
    fails: grpc.StatusCode | None = None
    refuses: int = 0
    port: int = 0

    def Export(  # noqa: N802  # grpcio wants the call's name
        self,
        request: messages.ExportTraceServiceRequest,
        context: grpc.ServicerContext,
    ) -> messages.ExportTraceServiceResponse:
        if self.fails is not None:
            context.abort(self.fails, "as told")
        for each in request.resource_spans:
            attributes = {a.key: a.value.string_value for a in each.resource.attributes}
            self.resources.append(attributes)
            for scoped in each.scope_spans:
                self.spans += scoped.spans
        answer = messages.ExportTraceServiceResponse()
        if self.refuses:
            answer.partial_success.rejected_spans = self.refuses
            answer.partial_success.error_message = "too many"
        return answer


@contextmanager
def otlp_server(address: str = "127.0.0.1:0") -> Iterator[OtlpServer]:
    """Serve OTLP at an address, `HOST:PORT` or `unix:PATH`, in grpcio's threads."""
    told = OtlpServer()
    server = grpc.server(ThreadPoolExecutor(2, "otlp"))
    services.add_TraceServiceServicer_to_server(told, server)  # type: ignore[no-untyped-call]
    told.port = server.add_insecure_port(address)
    server.start()
    try:
        yield told
    finally:
        server.stop(None).wait()


@contextmanager
def any_server(answers: dict[str, bytes], address: str) -> Iterator[list[tuple[str, Any]]]:
    """Serve encoded answers by method; yield the calls, with their metadata."""
    calls: list[tuple[str, Any]] = []

    class Handler(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
            calls.append((details.method, dict(details.invocation_metadata)))
            if details.method not in answers:
                return None  # UNIMPLEMENTED
            return grpc.unary_unary_rpc_method_handler(lambda *_: answers[details.method])

    server = grpc.server(ThreadPoolExecutor(2, "any"), handlers=[Handler()])
    server.add_insecure_port(address)
    server.start()
    try:
        yield calls
    finally:
        server.stop(None).wait()
