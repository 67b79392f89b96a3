"""A service of raw messages in all four shapes, and ways to reach one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import trio
from trio.testing import memory_stream_pair

from kubelet_trio.grpc import (
    Channel,
    GRPCError,
    Handler,
    Server,
    ServerStream,
    Status,
    StreamStreamMethod,
    StreamUnaryMethod,
    UnaryStreamMethod,
    UnaryUnaryMethod,
    stream_stream,
    stream_unary,
    unary_stream,
    unary_unary,
)
from kubelet_trio.grpc import RawMessage as Raw

PATH = "/test.Echo/"
Stream = ServerStream[Raw, Raw]


class Echo:
    """Answers with what it was sent; `active` and `cancelled` count handlers."""

    def __init__(self) -> None:
        self.active = 0
        self.cancelled = 0
        self.metadata: dict[str, str | bytes] = {}
        self._left = trio.lowlevel.ParkingLot()

    async def wait_idle(self) -> None:
        while self.active:
            await self._left.park()

    async def unary(self, request: Raw) -> Raw:
        if request == b"fail":
            raise GRPCError(Status.FAILED_PRECONDITION, "naïve: 100%\n", b"\x00details")
        if request == b"bug":
            raise ZeroDivisionError
        if request == b"hang":
            await trio.sleep_forever()
        return Raw(b"re:" + request)

    async def count(self, request: Raw, stream: Stream) -> None:
        """Send as many replies as the request says, without an end for `-1`."""
        left = int(request)
        while left:
            await stream.send_message(Raw(b"%d" % left))
            left -= 1

    async def join(self, stream: Stream) -> Raw:
        return Raw(b",".join([message async for message in stream]))

    async def double(self, stream: Stream) -> None:
        await stream.send_initial_metadata([("x-first", "1"), ("x-bin", b"\xff\x00")])
        async for message in stream:
            await stream.send_message(Raw(message * 2))
        await stream.send_trailing_metadata(metadata={"x-last": "2"})

    async def early(self, stream: Stream) -> Raw:
        """Answer before the requests have ended."""
        return Raw(await stream.recv_message() or b"")

    def __mapping__(self) -> Mapping[str, Handler]:
        handlers = {
            "unary": unary_unary(self.unary, Raw, Raw),
            "count": unary_stream(self.count, Raw, Raw),
            "join": stream_unary(self.join, Raw, Raw),
            "double": stream_stream(self.double, Raw, Raw),
            "early": stream_unary(self.early, Raw, Raw),
        }
        return {PATH + name: self._watched(handler) for name, handler in handlers.items()}

    def _watched(self, handler: Handler) -> Handler:
        async def serve(stream: Stream) -> None:
            self.metadata = dict(stream.metadata)
            self.active += 1
            try:
                await handler.func(stream)
            except trio.Cancelled:
                self.cancelled += 1
                raise
            finally:
                self.active -= 1
                self._left.unpark_all()

        return Handler(serve, handler.cardinality, Raw, Raw)


class EchoStub:
    def __init__(self, channel: Channel) -> None:
        self.unary = UnaryUnaryMethod(channel, PATH + "unary", Raw, Raw)
        self.count = UnaryStreamMethod(channel, PATH + "count", Raw, Raw)
        self.join = StreamUnaryMethod(channel, PATH + "join", Raw, Raw)
        self.double = StreamStreamMethod(channel, PATH + "double", Raw, Raw)
        self.early = StreamUnaryMethod(channel, PATH + "early", Raw, Raw)
        self.missing = UnaryUnaryMethod(channel, PATH + "missing", Raw, Raw)


class Wire:
    """Dials a server through memory; remembers both ends of each connection."""

    def __init__(self, server: Server, nursery: trio.Nursery) -> None:
        self.server = server
        self.ends: list[tuple[trio.abc.Stream, trio.abc.Stream]] = []
        self.refuse = False
        self.on_dial: Callable[[], object] = lambda: None
        self._nursery = nursery

    async def dial(self) -> trio.abc.Stream:
        self.on_dial()
        await trio.lowlevel.checkpoint()
        if self.refuse:
            raise ConnectionRefusedError("nobody is there")
        near, far = memory_stream_pair()
        self.ends.append((near, far))
        self._nursery.start_soon(self.server.serve_stream, far)
        return near


@asynccontextmanager
async def echo_wire(
    service: Echo | None = None, *, max_message_bytes: int = 16 << 20
) -> AsyncIterator[tuple[EchoStub, Wire, Channel]]:
    """Give a stub of an echo server over memory streams."""
    server = Server([service or Echo()], max_message_bytes=max_message_bytes)
    async with trio.open_nursery() as nursery:
        wire = Wire(server, nursery)
        channel = Channel(wire.dial)
        await nursery.start(channel.run)
        yield EchoStub(channel), wire, channel
        nursery.cancel_scope.cancel()
