"""A server with limits: what its clients, all together, can take of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, memory_stream_pair, wait_all_tasks_blocked

from kubelet_trio.grpc import Channel, GRPCError, Server, ServerLimits
from kubelet_trio.grpc import RawMessage as Raw
from kubelet_trio.grpc._limits import RateLimit
from tests.grpc.echo import Echo, EchoStub
from tests.grpc.raw_peer import PING, PREFACE, settings
from tests.harness.linear import longest_turn


class Limited:
    """An echo server with limits; `connect` makes one more client."""

    def __init__(self, limits: ServerLimits, nursery: trio.Nursery) -> None:
        self.echo = Echo()
        self.server = Server([self.echo], limits=limits)
        self.dials = 0
        self._nursery = nursery

    async def dial(self) -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        near, far = memory_stream_pair()
        self.dials += 1
        self._nursery.start_soon(self.server.serve_stream, far)
        return near

    async def connect(self) -> EchoStub:
        channel = Channel(self.dial)
        await self._nursery.start(channel.run)
        return EchoStub(channel)


@asynccontextmanager
async def limited(limits: ServerLimits) -> AsyncIterator[Limited]:
    async with trio.open_nursery() as nursery:
        yield Limited(limits, nursery)
        nursery.cancel_scope.cancel()


async def outcome(stub: EchoStub, request: bytes) -> str:
    """Return the reply or the error of one call."""
    try:
        return (await stub.unary(Raw(request))).decode()
    except GRPCError as exc:
        return str(exc)


@asynccontextmanager
async def hanging(world: Limited, *stubs: EchoStub) -> AsyncIterator[None]:
    """Keep one call of each client in progress."""
    async with trio.open_nursery() as nursery:
        for stub in stubs:
            nursery.start_soon(outcome, stub, b"hang")
        await wait_all_tasks_blocked()
        yield
        nursery.cancel_scope.cancel()


async def test_one_connection_more_ends_the_one_that_is_idle_for_longest(
    autojump_clock: MockClock,
) -> None:
    async with limited(ServerLimits(connections=3)) as world:
        first, second, third = [await world.connect() for _ in range(3)]
        for stub in (second, third, first):
            assert await outcome(stub, b"1") == "re:1"
        async with hanging(world, third):
            fourth = await world.connect()
            assert await outcome(fourth, b"2") == "re:2"
            await trio.sleep(5)
            assert world.dials == 4
            # It was the second; a client dials again, at the cost of the next one.
            assert await outcome(first, b"3") == "re:3"
            assert world.dials == 4
            assert await outcome(second, b"4") == "re:4"
            assert world.dials == 5


async def test_a_connection_is_refused_while_all_others_have_calls(
    autojump_clock: MockClock,
) -> None:
    async with limited(ServerLimits(connections=2)) as world:
        stubs = [await world.connect() for _ in range(2)]
        async with hanging(world, *stubs):
            near, far = memory_stream_pair()
            await world.server.serve_stream(far)
            with pytest.raises((trio.BrokenResourceError, trio.ClosedResourceError)):
                await near.send_all(b"PRI")
        await trio.sleep(1)
        assert await outcome(await world.connect(), b"1") == "re:1"


async def test_a_flood_of_silent_connections_is_bounded(autojump_clock: MockClock) -> None:
    async with limited(ServerLimits(connections=4)) as world:
        async with AsyncExitStack() as stack:
            for _ in range(100):
                stack.push_async_callback((await world.dial()).aclose)
                await wait_all_tasks_blocked()
                assert len(world.server._connections) <= 8
            await trio.sleep(5)
            assert len(world.server._connections) <= 4
            assert await outcome(await world.connect(), b"1") == "re:1"


async def test_unary_calls_are_limited_over_all_connections(autojump_clock: MockClock) -> None:
    async with limited(ServerLimits(calls=2)) as world:
        stubs = [await world.connect() for _ in range(3)]
        async with hanging(world, *stubs[:2]):
            expected = "RESOURCE_EXHAUSTED: more than 2 calls are in progress"
            assert await outcome(stubs[2], b"1") == expected
            # A stream may last, so it is not one of them.
            assert await stubs[2].double([Raw(b"x")]) == [b"xx"]
        await wait_all_tasks_blocked()
        assert await outcome(stubs[2], b"1") == "re:1"


async def test_a_unary_call_has_a_deadline_even_if_its_client_sets_none(
    autojump_clock: MockClock,
) -> None:
    async with limited(ServerLimits(call_seconds=30)) as world:
        began = trio.current_time()
        stub = await world.connect()
        assert await outcome(stub, b"hang") == "DEADLINE_EXCEEDED: the deadline passed"
        assert trio.current_time() - began == pytest.approx(30)


async def test_a_client_that_does_not_read_its_reply_loses_the_call(
    autojump_clock: MockClock,
) -> None:
    async with limited(ServerLimits(calls=1, call_seconds=30)) as world:
        slow, other = await world.connect(), await world.connect()
        async with slow.unary.open() as call:
            await call.send_message(Raw(bytes(4 << 20)), end=True)
            await wait_all_tasks_blocked()
            assert world.echo.active == 1  # it waits for the window of the client's stream
            assert "calls are in progress" in await outcome(other, b"1")
            await trio.sleep(31)
            assert world.echo.active == 0
            assert await outcome(other, b"1") == "re:1"


async def test_requests_and_replies_have_limits_of_their_own(autojump_clock: MockClock) -> None:
    async with limited(ServerLimits(request_bytes=8)) as world:
        stub = await world.connect()
        assert await outcome(stub, b"12345678") == "re:12345678"
        expected = "RESOURCE_EXHAUSTED: received message is too large: 9 > 8 bytes"
        assert await outcome(stub, b"123456789") == expected


async def test_a_client_is_told_how_many_calls_a_connection_takes(
    autojump_clock: MockClock,
) -> None:
    async with limited(ServerLimits(streams=2)) as world:
        stub = await world.connect()
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(outcome, stub, b"hang")
            await wait_all_tasks_blocked()
            assert world.echo.active == 2
            nursery.cancel_scope.cancel()


async def test_only_unary_calls_are_counted_against_the_rate(autojump_clock: MockClock) -> None:
    async with limited(ServerLimits(qps=10, burst=2)) as world:
        stub = await world.connect()
        outcomes = [await outcome(stub, b"1") for _ in range(3)]
        refused = "RESOURCE_EXHAUSTED: rejected by rate limit"
        assert outcomes == ["re:1", "re:1", refused]
        assert await stub.count(Raw(b"2")) == [b"2", b"1"]
        await trio.sleep(0.1)
        assert [await outcome(stub, b"1") for _ in range(2)] == ["re:1", refused]


@given(
    qps=st.integers(1, 100),
    burst=st.integers(1, 20),
    pauses=st.lists(st.floats(0, 0.5), max_size=60),
)
def test_a_rate_never_allows_more_than_its_burst_and_its_rate(
    qps: int, burst: int, pauses: list[float]
) -> None:
    async def run() -> None:
        limit, began, allowed = RateLimit(qps, burst), trio.current_time(), 0
        for pause in pauses:
            await trio.sleep(pause)
            allowed += limit.allow()
            assert allowed <= burst + (trio.current_time() - began) * qps + 1e-6

    trio.run(run, clock=MockClock(autojump_threshold=0))


async def test_a_rate_of_zero_is_none(autojump_clock: MockClock) -> None:
    limit = RateLimit(0, 1)
    assert all(limit.allow() for _ in range(1000))


def test_the_defaults_limit_nothing_that_a_runtime_does() -> None:
    limits = ServerLimits()
    assert (limits.connections, limits.calls, limits.qps) == (None, None, 0)


def test_between_many_frames_of_one_read_others_get_their_turn() -> None:
    async def flood(count: int) -> None:
        ours, theirs = memory_stream_pair()
        await theirs.send_all(PREFACE + settings() + PING * count)
        await theirs.send_eof()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Server([Echo()]).serve_stream, ours)
            answered = b""
            while piece := await theirs.receive_some():
                answered += piece
        # Pings are answered in frames of their size.
        assert answered.count(PING[9:]) == count

    few, many = (longest_turn(partial(flood, count)) for count in (1_000, 3_500))
    assert many < 1.5 * few
