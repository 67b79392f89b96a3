"""Calls of the runtime that continue a trace."""

from __future__ import annotations

from typing import Protocol, TypeVar

from kubelet_trio.grpc import GRPCError, Message, MetadataLike, Status
from kubelet_trio.tracing import current_span, trace_headers

RequestT = TypeVar("RequestT", bound=Message, contravariant=True)
AnswerT = TypeVar("AnswerT", covariant=True)


class _Method(Protocol[RequestT, AnswerT]):
    async def __call__(
        self,
        message: RequestT,
        *,
        timeout: float | None,  # noqa: ASYNC109  # the call's
        metadata: MetadataLike,
    ) -> AnswerT: ...


async def traced_call(
    method: _Method[RequestT, AnswerT],
    request: RequestT,
    timeout: float | None,  # noqa: ASYNC109  # the call's
) -> AnswerT:
    """Make a call that continues the current span in the runtime. Raises `GRPCError`.

    `GuardedRuntime` opens that span, with the names of otelgrpc, the Go kubelet's.
    """
    opened = current_span()
    opened.set("rpc.system", "grpc")
    try:
        answer = await method(request, timeout=timeout, metadata=trace_headers())
    except GRPCError as exc:
        opened.set("rpc.grpc.status_code", exc.status.value)
        raise
    opened.set("rpc.grpc.status_code", Status.OK.value)
    return answer
