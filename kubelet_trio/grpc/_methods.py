"""Callable methods of the four cardinalities; generated stubs consist of them.

Each has `open()`, which gives the call as a stream, and is itself callable for the simple case.
`timeout` is the call's deadline in seconds. It is sent as `grpc-timeout` and enforced here, with
DEADLINE_EXCEEDED. Cancelling the caller resets the stream.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from math import inf
from typing import Generic, TypeVar

import trio

from kubelet_trio.grpc._call import ClientStream, ReplyT, RequestT, UnprocessedError
from kubelet_trio.grpc._channel import Channel
from kubelet_trio.grpc._codec import frame_message
from kubelet_trio.grpc._h2 import CANCEL
from kubelet_trio.grpc._metadata import MetadataLike
from kubelet_trio.grpc._status import GRPCError, Status, StreamTerminatedError
from kubelet_trio.grpc._stream import Http2Stream

_RETRIES = 3  # of calls that the peer never processed
T = TypeVar("T")


class _Method(Generic[RequestT, ReplyT]):
    __slots__ = ("_channel", "_path", "_reply_type", "_request_type")

    def __init__(
        self,
        channel: Channel,
        path: str,
        request_type: type[RequestT],
        reply_type: type[ReplyT],
    ) -> None:
        self._channel = channel
        self._path = path
        self._request_type = request_type
        self._reply_type = reply_type

    @asynccontextmanager
    async def open(
        self,
        *,
        timeout: float | None = None,  # noqa: ASYNC109  # a gRPC deadline, sent to the peer
        metadata: MetadataLike = (),
    ) -> AsyncIterator[ClientStream[RequestT, ReplyT]]:
        """Open the call as a stream. At the end of the block, a call that has not ended is reset.

        Raises `GRPCError`.
        """
        start = trio.current_time()
        deadline = inf if timeout is None else start + timeout
        with trio.CancelScope(deadline=deadline) as scope:
            stream = await self._channel.open_stream(self._path, timeout, metadata)
            try:
                yield self._call_on(stream, deadline)
            finally:
                stream.close(CANCEL)
        if scope.cancelled_caught:
            raise GRPCError(Status.DEADLINE_EXCEEDED, f"no answer within {timeout} s")

    def _call_on(self, stream: Http2Stream, deadline: float) -> ClientStream[RequestT, ReplyT]:
        return ClientStream(
            stream,
            self._request_type,
            self._reply_type,
            self._channel.codec,
            deadline=deadline,
            max_message_bytes=self._channel.max_message_bytes,
        )


def _one(reply: T | None) -> T:
    if reply is None:
        raise GRPCError(Status.INTERNAL, "the call ended without a reply")
    return reply


class UnaryUnaryMethod(_Method[RequestT, ReplyT]):
    """One request, one reply."""

    __slots__ = ()

    async def __call__(
        self,
        message: RequestT,
        *,
        timeout: float | None = None,  # noqa: ASYNC109  # a gRPC deadline
        metadata: MetadataLike = (),
    ) -> ReplyT:
        """Make the call and return the reply. Raises `GRPCError`."""
        data = self._channel.codec.encode(message, self._request_type)
        frame = frame_message(data, self._channel.max_message_bytes)
        deadline = None if timeout is None else trio.current_time() + timeout
        for _ in range(_RETRIES):
            try:
                return await self._call(frame, timeout, metadata)
            # gRPC's transparent retry: the server was going away and never processed the call.
            except UnprocessedError:
                timeout = None if deadline is None else max(0, deadline - trio.current_time())
        return await self._call(frame, timeout, metadata)

    async def _call(
        self,
        frame: bytes,
        timeout: float | None,  # noqa: ASYNC109
        metadata: MetadataLike,
    ) -> ReplyT:
        # As `open`, in one function: most calls are of this kind.
        deadline = inf if timeout is None else trio.current_time() + timeout
        with trio.CancelScope(deadline=deadline):
            stream = await self._channel.open_stream(self._path, timeout, metadata)
            try:
                return _one(await self._call_on(stream, deadline).exchange(frame))
            finally:
                stream.close(CANCEL)
        raise GRPCError(Status.DEADLINE_EXCEEDED, f"no answer within {timeout} s")


class UnaryStreamMethod(_Method[RequestT, ReplyT]):
    """One request, many replies."""

    __slots__ = ()

    async def __call__(
        self,
        message: RequestT,
        *,
        timeout: float | None = None,  # noqa: ASYNC109  # a gRPC deadline
        metadata: MetadataLike = (),
    ) -> list[ReplyT]:
        """Make the call and return all replies; `open()` gives them one by one."""
        async with self.open(timeout=timeout, metadata=metadata) as call:
            await _send_all(call, (message,))
            return [reply async for reply in call]


class StreamUnaryMethod(_Method[RequestT, ReplyT]):
    """Many requests, one reply."""

    __slots__ = ()

    async def __call__(
        self,
        messages: Iterable[RequestT] | AsyncIterable[RequestT],
        *,
        timeout: float | None = None,  # noqa: ASYNC109  # a gRPC deadline
        metadata: MetadataLike = (),
    ) -> ReplyT:
        """Send all messages and return the reply."""
        async with self.open(timeout=timeout, metadata=metadata) as call:
            await _send_all(call, messages)
            reply = await call.recv_message()
            if reply is not None:
                await call.recv_trailing_metadata()
            return _one(reply)


class StreamStreamMethod(_Method[RequestT, ReplyT]):
    """Many requests, many replies."""

    __slots__ = ()

    async def __call__(
        self,
        messages: Iterable[RequestT] | AsyncIterable[RequestT],
        *,
        timeout: float | None = None,  # noqa: ASYNC109  # a gRPC deadline
        metadata: MetadataLike = (),
    ) -> list[ReplyT]:
        """Send all messages while receiving, and return all replies."""
        async with self.open(timeout=timeout, metadata=metadata) as call:
            replies: list[ReplyT] = []

            async def receive() -> None:
                replies.extend([reply async for reply in call])

            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(receive)
                    await _send_all(call, messages)
            except BaseExceptionGroup as group:
                # As every other method, raise one error instead of a group: that of the caller's
                # own `messages`, or else the call's, which both directions may have raised.
                calls, own = group.split(GRPCError)
                errors = (own or calls or group).exceptions
                if own is not None and len(errors) > 1:
                    raise
                error = errors[0]
                raise error from error.__cause__
            return replies


async def _send_all(
    call: ClientStream[RequestT, ReplyT],
    messages: Iterable[RequestT] | AsyncIterable[RequestT],
) -> None:
    """Send until the messages end or the peer ends the call; the receiver raises its status."""
    with suppress(StreamTerminatedError):
        if isinstance(messages, AsyncIterable):
            async for message in messages:
                await call.send_message(message)
        else:
            for message in messages:
                await call.send_message(message)
        await call.end()
