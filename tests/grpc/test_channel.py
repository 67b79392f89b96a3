"""The channel's life: dialing, losing, going away, and telling whether it is connected."""

from __future__ import annotations

import itertools
from contextlib import suppress

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kubelet_trio.grpc import Channel, GRPCError, Server, Status, open_channel
from kubelet_trio.grpc import RawMessage as Raw
from kubelet_trio.grpc._channel import dialer
from tests.grpc.echo import Echo, EchoStub, Stream, Wire, echo_wire
from tests.grpc.raw_peer import RawPeer


async def status_of(echo: EchoStub, request: bytes = b"a") -> Status:
    with pytest.raises(GRPCError) as caught:
        await echo.unary(Raw(request))
    return caught.value.status


async def test_a_refused_connect_fails_the_call_at_once(autojump_clock: MockClock) -> None:
    async with echo_wire() as (echo, wire, _):
        wire.refuse = True
        start = trio.current_time()
        assert await status_of(echo) is Status.UNAVAILABLE
        assert trio.current_time() == start
        wire.refuse = False
        assert await echo.unary(Raw(b"a")) == b"re:a"


async def test_a_channel_that_does_not_run_is_unavailable() -> None:
    async with trio.open_nursery() as nursery:
        wire = Wire(Server([Echo()]), nursery)
        channel = Channel(wire.dial)
        assert await status_of(EchoStub(channel)) is Status.UNAVAILABLE
        async with trio.open_nursery() as life:
            await life.start(channel.run)
            await EchoStub(channel).unary(Raw(b"a"))
            life.cancel_scope.cancel()
        assert await status_of(EchoStub(channel)) is Status.UNAVAILABLE
        async with trio.open_nursery() as life:  # as a supervisor would start it again
            await life.start(channel.run)
            await EchoStub(channel).unary(Raw(b"a"))
            life.cancel_scope.cancel()


async def test_concurrent_calls_share_one_dial() -> None:
    async with echo_wire() as (echo, wire, _):
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(echo.unary, Raw(b"a"))
        assert len(wire.ends) == 1


async def test_a_cancelled_caller_does_not_stop_the_dial_for_others() -> None:
    async with echo_wire() as (echo, wire, _), trio.open_nursery() as nursery:
        first = trio.CancelScope()

        async def impatient() -> None:
            with first:
                await echo.unary(Raw(b"a"))

        nursery.start_soon(impatient)
        nursery.start_soon(echo.unary, Raw(b"b"))
        wire.on_dial = first.cancel
    assert len(wire.ends) == 1


@pytest.mark.parametrize("end", [0, 1])
async def test_losing_the_connection_fails_the_calls_in_flight(end: int) -> None:
    async with echo_wire() as (echo, wire, channel):
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(status_of, echo, b"hang")
            await wait_all_tasks_blocked()
            assert channel.connected.value
            await wire.ends[0][end].aclose()
        await wait_all_tasks_blocked()
        assert not channel.connected.value
        assert await echo.unary(Raw(b"a")) == b"re:a"
        assert len(wire.ends) == 2


async def test_a_loss_that_both_directions_meet_is_one_error() -> None:
    class Deaf(Echo):
        async def double(self, stream: Stream) -> None:
            await trio.sleep_forever()

    async with echo_wire(Deaf()) as (echo, wire, _), trio.open_nursery() as nursery:

        async def call() -> None:
            with pytest.raises(GRPCError) as caught:
                await echo.double([Raw(bytes(2 << 20))])  # more than a window
            assert caught.value.status is Status.UNAVAILABLE

        nursery.start_soon(call)
        await wait_all_tasks_blocked()
        await wire.ends[0][1].aclose()


async def test_stopping_the_channel_fails_the_calls_in_flight() -> None:
    async with trio.open_nursery() as nursery:
        wire = Wire(Server([Echo()]), nursery)
        channel = Channel(wire.dial)
        async with trio.open_nursery() as life, trio.open_nursery() as calls:
            await life.start(channel.run)
            calls.start_soon(status_of, EchoStub(channel), b"hang")
            await wait_all_tasks_blocked()
            life.cancel_scope.cancel()
        nursery.cancel_scope.cancel()


async def test_a_dial_that_hangs_is_given_up(autojump_clock: MockClock) -> None:
    async with open_channel(trio.sleep_forever, connect_timeout=5) as channel:
        start = trio.current_time()
        assert await status_of(EchoStub(channel)) is Status.UNAVAILABLE
        assert trio.current_time() - start == pytest.approx(5)


async def test_a_peer_that_accepts_and_says_nothing_is_given_up(autojump_clock: MockClock) -> None:
    peer = RawPeer(greeting=b"")
    async with open_channel(peer.dial, connect_timeout=5) as channel:
        start = trio.current_time()
        assert await status_of(EchoStub(channel)) is Status.UNAVAILABLE
        assert trio.current_time() - start == pytest.approx(5)
        assert await peer.streams[0].receive_some()  # what we said, and then
        assert await peer.streams[0].receive_some() == b""  # we hung up


async def test_calls_in_flight_finish_on_a_connection_that_goes_away() -> None:
    async with echo_wire() as (echo, wire, channel):
        async with echo.double.open() as old:
            await old.send_message(Raw(b"a"))
            assert await old.recv_message() == b"aa"
            wire.server.drain()
            await wait_all_tasks_blocked()
            assert not channel.connected.value
            assert await echo.unary(Raw(b"b")) == b"re:b"
            assert channel.connected.value
            assert len(wire.ends) == 2
            await old.send_message(Raw(b"c"), end=True)
            assert await old.recv_message() == b"cc"
            assert await old.recv_message() is None
        await wait_all_tasks_blocked()
        with pytest.raises(trio.ClosedResourceError):  # the old connection is gone
            await wire.ends[0][0].send_all(b"x")
        assert await echo.unary(Raw(b"d")) == b"re:d"
        assert len(wire.ends) == 2


async def test_a_drained_server_refuses_what_comes_late_and_ends(
    autojump_clock: MockClock,
) -> None:
    server = Server([Echo()])
    async with trio.open_nursery() as nursery:
        wire = Wire(server, nursery)
        async with open_channel(wire.dial) as channel:
            await EchoStub(channel).unary(Raw(b"a"))
            server.drain()
            assert await EchoStub(channel).unary(Raw(b"a")) == b"re:a"
    # serve_stream has returned for both connections: the nursery is empty


# keep_connected


async def test_keep_connected_dials_by_itself_and_again_after_a_loss(
    autojump_clock: MockClock,
) -> None:
    async with trio.open_nursery() as nursery:
        wire = Wire(Server([Echo()]), nursery)
        channel = Channel(wire.dial, keep_connected=True)
        wire.refuse = True
        await nursery.start(channel.run)  # ready with nobody there
        await trio.sleep(20)
        assert not channel.connected.value
        wire.refuse = False
        with trio.fail_after(4):
            await channel.connected.wait_value(True)
        await wire.ends[0][1].aclose()
        with trio.fail_after(1):
            await channel.connected.wait_value(False)
            await channel.connected.wait_value(True)
        nursery.cancel_scope.cancel()


async def test_attempts_are_spaced_out_to_three_seconds(autojump_clock: MockClock) -> None:
    dials: list[float] = []

    async def dial() -> trio.abc.Stream:
        dials.append(trio.current_time())
        await trio.lowlevel.checkpoint()
        raise ConnectionRefusedError

    async with trio.open_nursery() as nursery:
        await nursery.start(Channel(dial, keep_connected=True).run)
        await trio.sleep(60)
        nursery.cancel_scope.cancel()
    gaps = [later - earlier for earlier, later in itertools.pairwise(dials)]
    assert 0.08 <= gaps[0] <= 0.2
    assert all(gap <= 3.6 for gap in gaps)
    assert 20 <= len(dials) <= 40


async def test_a_call_does_not_wait_for_the_back_off(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        wire = Wire(Server([Echo()]), nursery)
        wire.refuse = True
        channel = Channel(wire.dial, keep_connected=True)
        await nursery.start(channel.run)
        await trio.sleep(30)
        wire.refuse = False
        start = trio.current_time()
        assert await EchoStub(channel).unary(Raw(b"a")) == b"re:a"
        assert trio.current_time() == start
        await trio.sleep(30)
        assert len(wire.ends) == 1
        nursery.cancel_scope.cancel()


async def test_a_peer_that_accepts_and_hangs_up_is_not_hammered(autojump_clock: MockClock) -> None:
    peer = RawPeer()

    async def hang_up() -> None:
        while True:
            while peer.streams:
                with suppress(trio.BrokenResourceError):
                    await peer.streams.pop().aclose()
            await trio.sleep(0.01)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(hang_up)
        await nursery.start(Channel(peer.dial, keep_connected=True).run)
        await trio.sleep(10)
        nursery.cancel_scope.cancel()
    assert 3 <= len(peer.dials) <= 130


# Targets


@pytest.mark.parametrize(
    ("target", "authority"),
    [
        ("unix:///run/x.sock", "localhost"),
        ("/run/x.sock", "localhost"),
        ("127.0.0.1:80", "127.0.0.1:80"),
        ("dns:///h:1", "dns:///h:1"),
    ],
)
def test_targets(target: str, authority: str) -> None:
    assert dialer(target)[1] == authority.removeprefix("dns:///")


@pytest.mark.parametrize("target", ["", "host", "host:port", "http://host:80", "tcp://h:1/x"])
def test_what_is_no_target_is_refused(target: str) -> None:
    with pytest.raises(ValueError, match="not a gRPC target"):
        dialer(target)
