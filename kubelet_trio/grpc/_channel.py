"""A client's channel to one address: it dials on demand, and again after a connection is lost.

`Channel.run` is a task body that owns all connections of the channel; calls only borrow one. If
it does not run, or the dial fails, a call fails with UNAVAILABLE: callers have their own back-off.
Calls that wait for a connection share one dial.

A connection that is going away (GOAWAY) keeps its streams and gets no new ones: the next call
dials a new connection. The calls of a lost connection fail with UNAVAILABLE.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

import trio
from trio_util import AsyncValue

from kubelet_trio.grpc._codec import CONTENT_TYPE, MAX_MESSAGE_BYTES, Codec, ProtoCodec
from kubelet_trio.grpc._connection import Http2Connection
from kubelet_trio.grpc._metadata import MetadataLike, encode_metadata, encode_timeout
from kubelet_trio.grpc._status import GRPCError, Status
from kubelet_trio.grpc._stream import Http2Stream
from kubelet_trio.model import Backoff

Dial = Callable[[], Awaitable[trio.abc.Stream]]

CONNECT_TIMEOUT = 5.0  # s, as in the Go kubelet
MIN_BACKOFF = 0.1  # s, between dials that no call asked for
MAX_BACKOFF = 3.0  # s
USER_AGENT = "kubelet-trio"


@dataclass(eq=False, slots=True)
class _Attempt:
    """One dial, shared by all calls that wait for it."""

    done: trio.Event = field(default_factory=trio.Event)
    error: str = "the channel was closed"
    succeeded: bool = False


class Channel:
    """Calls to `target`: `unix:///path`, `/path`, `host:port`, or a function that dials."""

    def __init__(
        self,
        target: str | Dial,
        *,
        codec: Codec | None = None,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        keep_connected: bool = False,
        connect_timeout: float = CONNECT_TIMEOUT,
        user_agent: str = USER_AGENT,
    ) -> None:
        """Make a channel; nothing happens before `run`.

        With `keep_connected` it dials without waiting for a call, and again with a growing delay
        after a loss, so that `connected` shows whether the peer can be reached.
        """
        self.codec = codec or ProtoCodec()
        self.max_message_bytes = max_message_bytes
        self.connected = AsyncValue(False)
        self._dial, authority = (target, "localhost") if callable(target) else dialer(target)
        self._target = "" if callable(target) else target
        self._keep_connected = keep_connected
        self._connect_timeout = connect_timeout
        self._current: Http2Connection | None = None
        self._attempt: _Attempt | None = None
        self._dials: trio.MemorySendChannel[_Attempt] | None = None  # to `run`; None: not running
        self._headers = [
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":authority", authority.encode()),
            (b"te", b"trailers"),  # gRPC requires it, to detect proxies that drop trailers
            (b"content-type", CONTENT_TYPE + b"+" + self.codec.content_subtype.encode()),
            (b"user-agent", user_agent.encode()),
        ]

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Own the channel's connections until cancelled; ready at once."""
        # `_begin` starts an attempt only when none is pending, so one slot never blocks it.
        dials, attempts = trio.open_memory_channel[_Attempt](1)
        with dials, attempts:
            async with trio.open_nursery() as connections:
                connections.start_soon(self._connect_each, attempts, connections)
                self._dials = dials
                try:
                    task_status.started()
                    if self._keep_connected:
                        await self._stay_connected()
                    else:
                        await trio.sleep_forever()
                finally:
                    self._dials = None
                    if self._attempt is not None:  # callers wait for it, and it may never start
                        self._finish(self._attempt)

    async def _connect_each(
        self, attempts: trio.MemoryReceiveChannel[_Attempt], connections: trio.Nursery
    ) -> None:
        async for attempt in attempts:
            connections.start_soon(self._connect, attempt)

    async def open_stream(
        self,
        path: str,
        timeout: float | None,  # noqa: ASYNC109  # only sent to the peer; the caller has the scope
        metadata: MetadataLike,
    ) -> Http2Stream:
        """Open a stream for a call, on a connection that has room for it. Raises `GRPCError`."""
        # Pseudo-header fields come first, RFC 9113, section 8.3.
        headers = [*self._headers[:3], (b":path", path.encode()), *self._headers[3:]]
        if timeout is not None:
            headers.append((b"grpc-timeout", encode_timeout(timeout)))
        if metadata:
            headers += encode_metadata(metadata)
        while True:
            connection = await self._connection()
            if connection.has_room:
                return connection.open_stream(headers)
            await connection.wait_room()

    async def _connection(self) -> Http2Connection:
        while True:
            if self._current is not None:
                return self._current
            attempt = self._attempt or self._begin()
            await attempt.done.wait()
            if not attempt.succeeded:
                raise GRPCError(Status.UNAVAILABLE, attempt.error)

    def _begin(self) -> _Attempt:
        if self._dials is None:
            raise GRPCError(Status.UNAVAILABLE, "the channel is not running")
        self._attempt = attempt = _Attempt()
        self._dials.send_nowait(attempt)
        return attempt

    def _cannot_connect(self, exc: OSError) -> str:
        """Return the error text of a failed dial, with a hint at the likely cause."""
        where = f" to {self._target}" if self._target else ""
        is_absent = isinstance(exc, FileNotFoundError | ConnectionRefusedError)
        hint = "; is the program that serves it running?" if is_absent else ""
        return f"cannot connect{where}: {exc.strerror or exc}{hint}"

    async def _connect(self, attempt: _Attempt) -> None:
        """Dial, and run the connection to its end."""
        try:
            with trio.move_on_after(self._connect_timeout) as dialing:
                try:
                    transport = await self._dial()
                except OSError as exc:
                    attempt.error = self._cannot_connect(exc)
                    return
                connection = Http2Connection(
                    transport, client=True, on_draining=lambda: self._leave(connection)
                )
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(connection.run)
                    await connection.wait_ready()
                    dialing.deadline = float("inf")
                    if connection.is_usable:
                        self._current = connection
                        self.connected.value = True
                        attempt.succeeded = True
                    attempt.error = connection.reason
                    self._finish(attempt)
            if dialing.cancelled_caught:
                attempt.error = f"no connection within {self._connect_timeout} s"
        finally:
            self._finish(attempt)

    def _finish(self, attempt: _Attempt) -> None:
        attempt.done.set()
        if self._attempt is attempt:
            self._attempt = None

    def _leave(self, connection: Http2Connection) -> None:
        """Start no more calls on this connection."""
        if self._current is connection:
            self._current = None
            self.connected.value = False

    async def _stay_connected(self) -> None:
        backoff = Backoff(MIN_BACKOFF, MAX_BACKOFF, factor=1.6)
        while True:
            await self.connected.wait_value(False)
            attempt = self._attempt or self._begin()
            await attempt.done.wait()
            if attempt.succeeded:
                backoff.reset()
            # After a success too: a peer that accepts and hangs up is dialed ten times a second at
            # most. The jitter keeps clients of a restarted server apart.
            await trio.sleep(backoff.next_delay() * random.uniform(0.8, 1.2))


def dialer(target: str) -> tuple[Dial, str]:
    """Return the function that dials a target, and the value of `:authority`.

    Raises ValueError for a target that is neither a socket path nor `host:port`.
    """
    path = target.removeprefix("unix://") if target.startswith("unix://") else target
    if path.startswith("/"):
        return partial(trio.open_unix_socket, path), "localhost"
    host, colon, port = target.removeprefix("dns:///").rpartition(":")
    if not colon or not port.isdigit() or "/" in host:
        raise ValueError(f"not a gRPC target: {target!r}")
    return partial(trio.open_tcp_stream, host.strip("[]"), int(port)), f"{host}:{port}"


@asynccontextmanager
async def open_channel(
    target: str | Dial,
    *,
    codec: Codec | None = None,
    max_message_bytes: int = MAX_MESSAGE_BYTES,
    connect_timeout: float = CONNECT_TIMEOUT,
    user_agent: str = USER_AGENT,
) -> AsyncIterator[Channel]:
    """Open a channel that runs within a block."""
    channel = Channel(
        target,
        codec=codec,
        max_message_bytes=max_message_bytes,
        connect_timeout=connect_timeout,
        user_agent=user_agent,
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(channel.run)
        yield channel
        nursery.cancel_scope.cancel()
