"""Messages of 16 MiB go both ways, larger ones nowhere, and an unread stream costs a window."""

from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from kubelet_trio.grpc import GRPCError, Handler, Server, Status, UnaryUnaryMethod, open_channel
from kubelet_trio.grpc import RawMessage as Raw
from kubelet_trio.grpc._h2 import STREAM_WINDOW
from tests.grpc.echo import PATH, Echo, EchoStub, Stream, Wire, echo_wire

LARGEST = 16 << 20


class Mirror(Echo):
    async def unary(self, request: Raw) -> Raw:
        return request


async def test_the_largest_message_goes_both_ways() -> None:
    async with echo_wire(Mirror()) as (echo, _, _):
        message = Raw(bytes(range(256)) * (LARGEST // 256))
        assert await echo.unary(message) == message


async def test_large_messages_share_a_connection() -> None:
    replies: list[int] = []

    async with echo_wire(Mirror()) as (echo, wire, _):

        async def call(size: int) -> None:
            replies.append(len(await echo.unary(Raw(bytes(size)))))

        async with trio.open_nursery() as nursery:
            for n in range(6):
                nursery.start_soon(call, (n + 1) * 700_000)
        assert sorted(replies) == [(n + 1) * 700_000 for n in range(6)]
        assert len(wire.ends) == 1


async def test_a_larger_message_is_not_sent() -> None:
    async with echo_wire(Mirror()) as (echo, wire, _):
        with pytest.raises(GRPCError) as caught:
            await echo.unary(Raw(bytes(LARGEST + 1)))
        assert caught.value.status is Status.RESOURCE_EXHAUSTED
        assert wire.ends == []


async def test_a_larger_request_is_refused_by_the_server() -> None:
    async with echo_wire(Mirror(), max_message_bytes=1000) as (echo, _, _):
        assert len(await echo.unary(Raw(bytes(1000)))) == 1000
        with pytest.raises(GRPCError) as caught:
            await echo.unary(Raw(bytes(LARGEST)))
        assert caught.value.status is Status.RESOURCE_EXHAUSTED
        with pytest.raises(GRPCError) as caught:
            await echo.double([Raw(bytes(501))])  # its reply is too large
        assert caught.value.status is Status.RESOURCE_EXHAUSTED


async def test_a_larger_reply_is_refused_by_the_client() -> None:
    async with trio.open_nursery() as nursery:
        wire = Wire(Server([Echo()]), nursery)
        async with open_channel(wire.dial, max_message_bytes=10) as channel:
            echo = EchoStub(channel)
            assert await echo.unary(Raw(b"1234567")) == b"re:1234567"
            with pytest.raises(GRPCError) as caught:
                await echo.unary(Raw(b"12345678"))
            assert caught.value.status is Status.RESOURCE_EXHAUSTED
        nursery.cancel_scope.cancel()


class Counted(Echo):
    """Sends and reads messages of 10 kB, and counts those it got rid of."""

    sent = 0
    read = 0

    async def count(self, request: Raw, stream: Stream) -> None:
        while True:
            await stream.send_message(Raw(bytes(10_000)))
            self.sent += 1

    async def join(self, stream: Stream) -> Raw:
        await trio.sleep_forever()
        return Raw()


async def test_a_server_waits_for_a_client_that_does_not_read() -> None:
    service = Counted()
    async with echo_wire(service) as (echo, _, _), echo.count.open() as call:
        await call.send_message(Raw(b""), end=True)
        await wait_all_tasks_blocked()
        assert service.sent == pytest.approx(STREAM_WINDOW / 10_005, abs=2)
        for _ in range(500):
            await call.recv_message()
        await wait_all_tasks_blocked()
        assert 500 <= service.sent <= 500 + STREAM_WINDOW / 10_000 + 1


async def test_a_client_waits_for_a_server_that_does_not_read() -> None:
    sent = 0
    async with echo_wire(Counted()) as (echo, _, _), echo.join.open() as call:
        with trio.move_on_after(0.2):
            while True:
                await call.send_message(Raw(bytes(10_000)))
                sent += 1
    assert sent == pytest.approx(STREAM_WINDOW / 10_005, abs=2)


async def test_a_transport_that_does_not_drain_holds_senders_up() -> None:
    """Windows alone would let ten calls queue 10 MiB."""
    sent = 0
    async with echo_wire(Counted()) as (echo, _, channel), trio.open_nursery() as nursery:
        await echo.unary(Raw(b"connect"))
        connection = channel._current
        assert connection is not None
        stuck = trio.Event()

        async def never(data: bytes | bytearray | memoryview) -> None:
            await stuck.wait()

        connection._transport.send_all = never  # type: ignore[method-assign]

        async def flood() -> None:
            nonlocal sent
            async with echo.join.open() as call:
                while True:
                    await call.send_message(Raw(bytes(10_000)))
                    sent += 10_000

        for _ in range(10):
            nursery.start_soon(flood)
        await wait_all_tasks_blocked()
        assert sent < 3 << 20
        nursery.cancel_scope.cancel()


async def test_the_peers_limit_on_streams_is_waited_for() -> None:
    started: list[int] = []
    finish = trio.Event()

    async def serve(stream: Stream) -> None:
        started.append(len(started))
        await finish.wait()

    class Limited(Echo):
        def __mapping__(self) -> dict[str, Handler]:
            handler = super().__mapping__()[PATH + "unary"]
            return {PATH + "unary": Handler(serve, handler.cardinality, Raw, Raw)}

    async with echo_wire(Limited()) as (echo, _, _), trio.open_nursery() as nursery:

        async def call(method: UnaryUnaryMethod[Raw, Raw]) -> None:
            with pytest.raises(GRPCError):
                await method(Raw(b""))

        for _ in range(1100):
            nursery.start_soon(call, echo.unary)
        await wait_all_tasks_blocked()
        assert len(started) == 1000  # what our server allows
        finish.set()
    assert len(started) == 1100


async def test_one_slow_call_holds_up_no_other() -> None:
    async with echo_wire(Counted()) as (echo, _, _), trio.open_nursery() as nursery:
        nursery.start_soon(echo.unary, Raw(b"hang"))
        async with echo.count.open() as unread:
            await unread.send_message(Raw(b""), end=True)
            await wait_all_tasks_blocked()  # its window is full
            for n in range(20):
                assert await echo.unary(Raw(b"%d" % n)) == b"re:%d" % n
        nursery.cancel_scope.cancel()
