"""A client's call: gRPC within one HTTP/2 stream.

    call = ClientStream(...)        headers are queued; nothing is sent before the first await
    send_message* -> end            messages to the peer
    recv_message* -> None           messages from the peer; its end raises a status other than OK

All failures become a `GRPCError` here: resets, lost connections, HTTP answers that are not gRPC,
messages that do not parse.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Generic, Self, TypeVar

import trio

from kubelet_trio.grpc._codec import (
    CONTENT_TYPE,
    MAX_MESSAGE_BYTES,
    Codec,
    Message,
    frame_message,
    read_frame,
)
from kubelet_trio.grpc._h2 import CANCEL
from kubelet_trio.grpc._metadata import Headers, Metadata, decode_bin, decode_message
from kubelet_trio.grpc._metadata import decode_metadata as decode_pairs
from kubelet_trio.grpc._status import (
    GRPCError,
    Status,
    StreamTerminatedError,
    status_of_http,
    status_of_reset,
)
from kubelet_trio.grpc._stream import Http2Stream, StreamLostError

RequestT = TypeVar("RequestT", bound=Message)
ReplyT = TypeVar("ReplyT", bound=Message)


class UnprocessedError(GRPCError):
    """UNAVAILABLE for a call that the peer never processed: a retry is safe."""


class ClientStream(Generic[RequestT, ReplyT]):
    """One call, open within `async with method.open(...)`.

    All methods but `cancel` may raise `GRPCError`. All may be cancelled: after a cancelled
    `send_message` the call can only be cancelled, the others lose nothing.
    """

    def __init__(
        self,
        stream: Http2Stream,
        request_type: type[RequestT],
        reply_type: type[ReplyT],
        codec: Codec,
        *,
        deadline: float,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
    ) -> None:
        self._stream = stream
        self._request_type = request_type
        self._reply_type = reply_type
        self._codec = codec
        self._deadline = deadline
        self._limit = max_message_bytes
        self._checked = False

    @property
    def initial_metadata(self) -> Metadata:
        """The peer's metadata before its messages; empty until it has arrived."""
        return decode_pairs(self._stream.headers or ())

    @property
    def trailing_metadata(self) -> Metadata:
        """The peer's metadata after its messages; empty until the call has ended."""
        return decode_pairs(self._trailers() or ())

    async def send_message(self, message: RequestT, *, end: bool = False) -> None:
        """Send a message, the last one if `end`.

        Raises `StreamTerminatedError` if the peer has ended the call (`recv_message` then raises
        its status), RESOURCE_EXHAUSTED for a message that is too large.
        """
        data = self._codec.encode(message, self._request_type)
        await self.send_frame(frame_message(data, self._limit), end=end)
        if not end:
            await trio.lowlevel.checkpoint()

    async def end(self) -> None:
        """Half-close the call: no more messages follow."""
        if not self._stream.finished:
            with self._translate():
                await self._stream.send(b"", end=True)

    async def recv_initial_metadata(self) -> Metadata:
        """Wait for the peer's first headers."""
        with self._translate():
            self._check_headers(await self._stream.wait_headers())
        return self.initial_metadata

    async def recv_message(self) -> ReplyT | None:
        """Receive the next message; None once the call has ended with OK."""
        await trio.lowlevel.checkpoint()
        return await self.receive()

    async def recv_trailing_metadata(self) -> Metadata:
        """Wait for the end of the call; raises its status if that is not OK."""
        await self.wait_status()
        return self.trailing_metadata

    def cancel(self) -> None:
        """End the call now, with RST_STREAM to the peer."""
        self._stream.close(CANCEL)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReplyT:
        message = await self.recv_message()
        if message is None:
            raise StopAsyncIteration
        return message

    # The same without a checkpoint of its own, for unary calls, which always wait for the reply

    async def exchange(self, frame: bytes) -> ReplyT | None:
        """Send the only message, and receive the only reply and the status."""
        try:
            # A peer may end the call before it reads the request; its status is raised below.
            if not self._stream.ended:
                await self._stream.send(frame, end=True)
            data = await self._read()
            await self._stream.wait_end()
            self._check_status()
        except StreamLostError as exc:
            raise self._lost(exc) from exc
        return None if data is None else self._decode(data)

    async def send_frame(self, frame: bytes, *, end: bool) -> None:
        with self._translate():
            if self._stream.ended:
                raise StreamTerminatedError
            await self._stream.send(frame, end=end)

    async def receive(self) -> ReplyT | None:
        with self._translate():
            data = await self._read()
            if data is None:
                await self._stream.wait_end()
                self._check_status()
                return None
            return self._decode(data)

    async def wait_status(self) -> None:
        with self._translate():
            if not self._checked:
                self._check_headers(await self._stream.wait_headers())
            await self._stream.wait_end()
            self._check_status()

    async def _read(self) -> bytes | None:
        if not self._checked:
            self._check_headers(await self._stream.wait_headers())
        return await read_frame(self._stream.read, self._limit)

    def _decode(self, data: bytes) -> ReplyT:
        try:
            reply: ReplyT = self._codec.decode(data, self._reply_type)
        except (ValueError, EOFError) as exc:
            raise GRPCError(Status.INTERNAL, f"the reply does not decode: {exc}") from exc
        return reply

    def _check_headers(self, headers: Headers) -> None:
        self._checked = True
        fields = dict(headers)
        if b"grpc-status" in fields and self._stream.ended:
            return  # a Trailers-Only response: `_check_status` reads it at the end
        http = fields.get(b":status", b"")
        if http != b"200":
            code = int(http) if http.isdigit() else 0
            raise GRPCError(status_of_http(code), f"HTTP status {code} and no gRPC")
        content_type = fields.get(b"content-type", b"")
        if not content_type.startswith(CONTENT_TYPE):
            raise GRPCError(Status.UNKNOWN, f"content-type {content_type!r} is not gRPC's")

    def _trailers(self) -> Headers | None:
        if not self._stream.ended:
            return None
        return self._stream.trailers or self._stream.headers

    def _check_status(self) -> None:
        fields = dict(self._trailers() or ())
        # In a Trailers-Only response the status is in the only header block.
        raw = fields.get(b"grpc-status")
        if raw == b"0":
            return
        message = decode_message(fields.get(b"grpc-message", b""))
        if raw is None:
            raise GRPCError(Status.UNKNOWN, "the call ended without grpc-status")
        try:
            status = Status(int(raw))
        except ValueError:
            status, message = Status.UNKNOWN, f"grpc-status {raw!r}: {message}"
        details = decode_bin(fields.get(b"grpc-status-details-bin", b""))
        raise GRPCError(status, message, details or None)

    @contextmanager
    def _translate(self) -> Iterator[None]:
        try:
            yield
        except StreamLostError as exc:
            raise self._lost(exc) from exc

    def _lost(self, exc: StreamLostError) -> GRPCError:
        if exc.unprocessed and self._stream.headers is None:
            return UnprocessedError(Status.UNAVAILABLE, exc.message)
        if exc.code is None:
            return GRPCError(Status.UNAVAILABLE, exc.message)
        # A server resets with CANCEL at the deadline, which our own timer may see a moment later.
        if exc.code == CANCEL and trio.current_time() >= self._deadline:
            return GRPCError(Status.DEADLINE_EXCEEDED, "the deadline passed")
        return GRPCError(status_of_reset(exc.code), exc.message)
