"""The server: one task per connection, one per call, all below `Server.serve`.

A call ends with its handler. A return is status OK, a `GRPCError` is its status, any other
exception is logged and becomes UNKNOWN; other calls do not notice. The handler is cancelled when
the caller cancels, when its deadline passes, and when its connection is lost.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, Protocol, Self

import trio

from kubelet_trio.grpc._call import ReplyT, RequestT
from kubelet_trio.grpc._codec import (
    CONTENT_TYPE,
    MAX_MESSAGE_BYTES,
    Codec,
    ProtoCodec,
    frame_message,
    read_frame,
)
from kubelet_trio.grpc._connection import Http2Connection
from kubelet_trio.grpc._h2 import NO_ERROR
from kubelet_trio.grpc._limits import RateLimit, ServerLimits
from kubelet_trio.grpc._metadata import (
    Headers,
    Metadata,
    MetadataLike,
    decode_metadata,
    decode_timeout,
    encode_message,
    encode_metadata,
)
from kubelet_trio.grpc._status import Cardinality, GRPCError, Handler, Status
from kubelet_trio.grpc._stream import Http2Stream, StreamLostError
from kubelet_trio.model import get_logger
from kubelet_trio.supervision import run_contained

log = get_logger()


class Servable(Protocol):
    """A service, as the generated `...Base` classes are."""

    def __mapping__(self) -> Mapping[str, Handler]:
        """Return the handlers by path (`/package.Service/Method`)."""
        ...


class ServerStream(Generic[RequestT, ReplyT]):
    """One call, as its handler sees it."""

    def __init__(
        self,
        stream: Http2Stream,
        handler: Handler,
        codec: Codec,
        max_message_bytes: int,
        max_request_bytes: int | None = None,
    ) -> None:
        self._stream = stream
        self._handler = handler
        self._codec = codec
        self._limit = max_message_bytes
        self._most_received = max_message_bytes if max_request_bytes is None else max_request_bytes
        self._headers_sent = False
        self.metadata: Metadata = decode_metadata(stream.headers or ())

    async def recv_message(self) -> RequestT | None:
        """Receive the next message; None once the caller has sent all. Raises `GRPCError`."""
        await trio.lowlevel.checkpoint()
        data = await read_frame(self._stream.read, self._most_received)
        if data is None:
            return None
        try:
            request: RequestT = self._codec.decode(data, self._handler.request_type)
        except (ValueError, EOFError) as exc:
            raise GRPCError(Status.INTERNAL, f"the request does not decode: {exc}") from exc
        return request

    async def send_initial_metadata(self, metadata: MetadataLike = ()) -> None:
        """Send headers now instead of with the first message."""
        self._send_headers(metadata)
        await trio.lowlevel.checkpoint()

    async def send_message(self, message: ReplyT) -> None:
        """Send a message; waits while the caller does not read."""
        await self._send(message)
        await trio.lowlevel.checkpoint()

    async def send_trailing_metadata(
        self,
        status: Status = Status.OK,
        message: str | None = None,
        metadata: MetadataLike = (),
        details: bytes | None = None,
    ) -> None:
        """End the call; the caller sees nothing of what the handler does afterwards."""
        self.finish(GRPCError(status, message, details), metadata)
        await trio.lowlevel.checkpoint()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RequestT:
        message = await self.recv_message()
        if message is None:
            raise StopAsyncIteration
        return message

    async def reply(self, message: ReplyT) -> None:
        """Send the only message, with headers and trailers in one write."""
        await self._send(message)
        self.finish(GRPCError(Status.OK))

    def finish(self, outcome: GRPCError, metadata: MetadataLike = ()) -> None:
        """Send the status, unless the call has ended already. Does not block."""
        stream = self._stream
        if stream.finished or stream.lost:
            return
        trailers = [] if self._headers_sent else self._response_headers()
        trailers.append((b"grpc-status", b"%d" % outcome.status.value))
        if outcome.message:
            trailers.append((b"grpc-message", encode_message(outcome.message)))
        trailers += encode_metadata(metadata)
        if outcome.details:
            # `encode_metadata` refuses keys that begin with "grpc-": encode it under another one.
            trailers += encode_metadata({"status-details-bin": outcome.details})
            trailers[-1] = (b"grpc-status-details-bin", trailers[-1][1])
        stream.send_headers(trailers, end=True)
        # NO_ERROR: the client need not send the rest of its request, RFC 9113, section 8.1.
        stream.close(NO_ERROR)

    async def _send(self, message: ReplyT) -> None:
        frame = frame_message(self._codec.encode(message, self._handler.reply_type), self._limit)
        if not self._headers_sent:
            self._send_headers(())
        await self._stream.send(frame)

    def _send_headers(self, metadata: MetadataLike) -> None:
        self._stream.send_headers([*self._response_headers(), *encode_metadata(metadata)])
        self._headers_sent = True

    def _response_headers(self) -> Headers:
        content_type = CONTENT_TYPE + b"+" + self._codec.content_subtype.encode()
        return [(b":status", b"200"), (b"content-type", content_type)]


class Server:
    """Serves services on listeners, or on single streams."""

    def __init__(
        self,
        services: Iterable[Servable],
        *,
        codec: Codec | None = None,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        limits: ServerLimits | None = None,
    ) -> None:
        self._handlers: dict[bytes, Handler] = {}
        for service in services:
            for path, handler in service.__mapping__().items():
                self._handlers[path.encode()] = handler
        self._codec = codec or ProtoCodec()
        self._limit = max_message_bytes
        self._limits = limits or ServerLimits()
        self._rate = RateLimit(self._limits.qps, self._limits.burst)
        self._calls = 0  # unary ones in progress
        # In the order of their last call: the one that has been idle for longest is the first.
        self._connections: dict[Http2Connection, None] = {}

    async def serve(
        self,
        listeners: Sequence[trio.abc.Listener[Any]],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Accept connections until cancelled; ready once the listeners accept."""
        async with trio.open_nursery() as nursery:
            await nursery.start(trio.serve_listeners, self.serve_stream, listeners)
            task_status.started()

    async def serve_stream(self, transport: trio.abc.Stream) -> None:
        """Serve one connection to its end, or close it if there are too many."""
        if not self._make_room():
            log.warning("grpc.connection_refused", connections=len(self._connections))
            await trio.aclose_forcefully(transport)
            return
        async with trio.open_nursery() as calls:
            connection = Http2Connection(
                transport,
                client=False,
                on_request=lambda stream: calls.start_soon(self._serve, connection, stream),
                limits=self._limits,
            )
            self._connections[connection] = None
            try:
                await connection.run()
            finally:
                del self._connections[connection]
            calls.cancel_scope.cancel()

    def drain(self) -> None:
        """Send GOAWAY on all connections: calls in flight go on, new ones are refused."""
        for connection in self._connections:
            connection.drain()

    def _make_room(self) -> bool:
        """Return whether one more connection may come; an idle one may have to go."""
        most = self._limits.connections
        if most is None or len(self._connections) < most:
            return True
        idle = (c for c in self._connections if c.is_usable and not c.streams)
        longest = next(idle, None)
        # One that drains lives for a moment more: count it, or a flood of connections had no limit.
        if longest is None or len(self._connections) >= 2 * most:
            return False
        longest.drain()
        return True

    async def _serve(self, connection: Http2Connection, stream: Http2Stream) -> None:
        try:
            await self._serve_call(stream)
        finally:
            if connection in self._connections:
                del self._connections[connection]
                self._connections[connection] = None

    async def _serve_call(self, stream: Http2Stream) -> None:
        fields = dict(stream.headers or ())
        refusal = _refusal(fields)
        if refusal is not None:
            if not stream.lost:
                stream.send_headers(refusal, end=True)
                stream.close(NO_ERROR)
            return
        handler = self._handlers.get(fields.get(b":path", b""))
        call: ServerStream[Any, Any] = ServerStream(
            stream, handler or _UNKNOWN, self._codec, self._limit, self._limits.request_bytes
        )
        try:
            raw = fields.get(b"grpc-timeout")
            timeout = float("inf") if raw is None else decode_timeout(raw)
        except ValueError as exc:
            call.finish(GRPCError(Status.INTERNAL, str(exc)))
            return
        if handler is None or handler.cardinality is not Cardinality.UNARY_UNARY:
            await _run_handler(handler or _UNKNOWN, call, stream, timeout)
            return
        if (refused := self._refused()) is not None:
            call.finish(GRPCError(Status.RESOURCE_EXHAUSTED, refused))
            return
        self._calls += 1
        try:
            await _run_handler(handler, call, stream, min(timeout, self._limits.call_seconds))
        finally:
            self._calls -= 1

    def _refused(self) -> str | None:
        """Return why a unary call is refused; None if it is not."""
        most = self._limits.calls
        if most is not None and self._calls >= most:
            return f"more than {most} calls are in progress"
        # ErrorLimitExceeded in pkg/kubelet/apis/grpc.
        return None if self._rate.allow() else "rejected by rate limit"


async def _run_handler(
    handler: Handler,
    call: ServerStream[Any, Any],
    stream: Http2Stream,
    timeout: float,  # noqa: ASYNC109  # the caller's deadline
) -> None:
    outcome = GRPCError(Status.OK)
    with trio.move_on_after(timeout) as scope:
        stream.on_lost = scope.cancel
        if stream.lost:
            return
        # Contained: a bug in one handler fails its own call, not the others of the connection.
        failure = await run_contained(handler.func, call)
        if isinstance(failure, StreamLostError):
            return
        if isinstance(failure, GRPCError):
            outcome = failure
        elif failure is not None:
            name = getattr(handler.func, "__name__", "")
            log.error("grpc.handler_failed", handler=name, exc_info=failure)
            outcome = GRPCError(Status.UNKNOWN, "internal error")
    if scope.cancelled_caught:
        outcome = GRPCError(Status.DEADLINE_EXCEEDED, "the deadline passed")
    call.finish(outcome)


async def _unknown(_call: ServerStream[Any, Any]) -> None:
    raise GRPCError(Status.UNIMPLEMENTED, "unknown service or method")


_UNKNOWN = Handler(_unknown, Cardinality.STREAM_STREAM, bytes, bytes)


def _refusal(fields: Mapping[bytes, bytes]) -> Headers | None:
    """Return the HTTP answer to a request that is not gRPC; None if it is."""
    if fields.get(b":method") != b"POST":
        return [(b":status", b"405")]
    if not fields.get(b"content-type", b"").startswith(CONTENT_TYPE):
        return [(b":status", b"415")]
    if fields.get(b"te") != b"trailers":
        message = encode_message("the header te: trailers is missing")
        return [(b":status", b"400"), (b"grpc-status", b"13"), (b"grpc-message", message)]
    return None


# Handlers from functions; generated service bases use these.


def unary_unary(
    func: Callable[[RequestT], Awaitable[ReplyT]],
    request_type: type[RequestT],
    reply_type: type[ReplyT],
) -> Handler:
    """Return a handler from a function that takes the request and returns the reply."""

    async def serve(call: ServerStream[RequestT, ReplyT]) -> None:
        await call.reply(await func(await _request(call)))

    return Handler(serve, Cardinality.UNARY_UNARY, request_type, reply_type)


def unary_stream(
    func: Callable[[RequestT, ServerStream[RequestT, ReplyT]], Awaitable[None]],
    request_type: type[RequestT],
    reply_type: type[ReplyT],
) -> Handler:
    """Return a handler from a function that takes the request and sends replies to the stream."""

    async def serve(call: ServerStream[RequestT, ReplyT]) -> None:
        await func(await _request(call), call)

    return Handler(serve, Cardinality.UNARY_STREAM, request_type, reply_type)


def stream_unary(
    func: Callable[[ServerStream[RequestT, ReplyT]], Awaitable[ReplyT]],
    request_type: type[RequestT],
    reply_type: type[ReplyT],
) -> Handler:
    """Return a handler from a function that reads the stream and returns the reply."""

    async def serve(call: ServerStream[RequestT, ReplyT]) -> None:
        await call.reply(await func(call))

    return Handler(serve, Cardinality.STREAM_UNARY, request_type, reply_type)


def stream_stream(
    func: Callable[[ServerStream[RequestT, ReplyT]], Awaitable[None]],
    request_type: type[RequestT],
    reply_type: type[ReplyT],
) -> Handler:
    """Return a handler from a function that reads and writes the stream."""
    return Handler(func, Cardinality.STREAM_STREAM, request_type, reply_type)


async def _request(call: ServerStream[RequestT, ReplyT]) -> RequestT:
    request = await call.recv_message()
    if request is None:
        raise GRPCError(Status.INTERNAL, "the call came without a request")
    return request
