"""Handlers of the four shapes, made of functions; generated service bases are made of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from kubelet_trio.grpc._call import ReplyT, RequestT
from kubelet_trio.grpc._server import ServerStream
from kubelet_trio.grpc._status import Cardinality, GRPCError, Handler, Status


def unary_unary(
    func: Callable[[RequestT], Awaitable[ReplyT]],
    request_type: type[RequestT],
    reply_type: type[ReplyT],
) -> Handler:
    """Make a handler of a function from request to reply."""

    async def serve(call: ServerStream[RequestT, ReplyT]) -> None:
        await call.reply(await func(await _request(call)))

    return Handler(serve, Cardinality.UNARY_UNARY, request_type, reply_type)


def unary_stream(
    func: Callable[[RequestT, ServerStream[RequestT, ReplyT]], Awaitable[None]],
    request_type: type[RequestT],
    reply_type: type[ReplyT],
) -> Handler:
    """Make a handler of a function that takes the request and sends replies to the stream."""

    async def serve(call: ServerStream[RequestT, ReplyT]) -> None:
        await func(await _request(call), call)

    return Handler(serve, Cardinality.UNARY_STREAM, request_type, reply_type)


def stream_unary(
    func: Callable[[ServerStream[RequestT, ReplyT]], Awaitable[ReplyT]],
    request_type: type[RequestT],
    reply_type: type[ReplyT],
) -> Handler:
    """Make a handler of a function that reads the stream and returns the reply."""

    async def serve(call: ServerStream[RequestT, ReplyT]) -> None:
        await call.reply(await func(call))

    return Handler(serve, Cardinality.STREAM_UNARY, request_type, reply_type)


def stream_stream(
    func: Callable[[ServerStream[RequestT, ReplyT]], Awaitable[None]],
    request_type: type[RequestT],
    reply_type: type[ReplyT],
) -> Handler:
    """Make a handler of a function that reads and writes the stream."""
    return Handler(func, Cardinality.STREAM_STREAM, request_type, reply_type)


async def _request(call: ServerStream[RequestT, ReplyT]) -> RequestT:
    request = await call.recv_message()
    if request is None:
        raise GRPCError(Status.INTERNAL, "the call came without a request")
    return request
