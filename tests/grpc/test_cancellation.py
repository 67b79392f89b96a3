"""Cancelled at every await there is, nothing of ours stays behind and the channel still works.

`CancelAt` cancels a task while it is blocked at its n-th checkpoint. Each scenario is run
for n = 1, 2, ... until it gets through unharmed, over streams that hand over a few bytes at
a time, so that there are checkpoints in the middle of everything.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import pytest
import trio
from trio.testing import lockstep_stream_pair, wait_all_tasks_blocked

from kubelet_trio.grpc import Channel, GRPCError, Server, Status
from kubelet_trio.grpc import RawMessage as Raw
from kubelet_trio.grpc._status import StreamTerminatedError
from tests.grpc.echo import Echo, EchoStub, Wire

Scenario = Callable[[EchoStub], Awaitable[None]]


class CancelAt(trio.abc.Instrument):
    """Cancels `scope` when its task blocks for the `step`-th time."""

    def __init__(self, step: int) -> None:
        self.scope = trio.CancelScope()
        self._task: trio.lowlevel.Task | None = None
        self._left = step

    def __enter__(self) -> CancelAt:
        self._task = trio.lowlevel.current_task()
        trio.lowlevel.add_instrument(self)
        return self

    def __exit__(self, *exc: object) -> None:
        trio.lowlevel.remove_instrument(self)

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if task is self._task:
            self._left -= 1
            if self._left == 0:
                self.scope.cancel()


class Dribble(trio.abc.Stream):
    """A stream that is read a few bytes at a time."""

    def __init__(self, inner: trio.abc.Stream, size: int) -> None:
        self._inner = inner
        self._size = size

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        return await self._inner.receive_some(self._size)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._inner.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._inner.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        await self._inner.aclose()


class Lockstep(Wire):
    """Connections on which a send waits for its receive, `size` bytes at a time."""

    size = 40

    async def dial(self) -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        if self._nursery.cancel_scope.cancel_called:
            raise ConnectionRefusedError("the server has stopped")
        near, far = (Dribble(end, self.size) for end in lockstep_stream_pair())
        self.ends.append((near, far))
        self._nursery.start_soon(self.server.serve_stream, far)
        return near


@contextmanager
def maybe_unavailable() -> Iterator[None]:
    """Let UNAVAILABLE pass, and nothing else."""
    try:
        yield
    except StreamTerminatedError:
        pass
    except GRPCError as exc:
        if exc.status is not Status.UNAVAILABLE:
            raise


async def unary(echo: EchoStub) -> None:
    assert await echo.unary(Raw(b"a" * 500)) == b"re:" + b"a" * 500


async def unary_stream(echo: EchoStub) -> None:
    assert await echo.count(Raw(b"3")) == [b"3", b"2", b"1"]


async def stream_unary(echo: EchoStub) -> None:
    assert await echo.join([Raw(b"a"), Raw(b"b")]) == b"a,b"


async def stream_stream(echo: EchoStub) -> None:
    assert await echo.double([Raw(b"a"), Raw(b"b")]) == [b"aa", b"bb"]


async def conversation(echo: EchoStub) -> None:
    async with echo.double.open(timeout=1000) as call:
        await call.recv_initial_metadata()
        await call.send_message(Raw(b"a"))
        assert await call.recv_message() == b"aa"
        await call.end()
        await call.recv_trailing_metadata()


async def failure(echo: EchoStub) -> None:
    with pytest.raises(GRPCError):
        await echo.unary(Raw(b"fail"))


async def beyond_the_window(echo: EchoStub) -> None:
    assert len(await echo.unary(Raw(bytes(1_200_000)))) == 1_200_003


SCENARIOS = [
    unary,
    unary_stream,
    stream_unary,
    stream_stream,
    conversation,
    failure,
    beyond_the_window,
]


def lockstep(scenario: Scenario, service: Echo, nursery: trio.Nursery) -> Lockstep:
    wire = Lockstep(Server([service]), nursery)
    if scenario is beyond_the_window:
        wire.size = 65_000
    return wire


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("connected", [False, True])
async def test_a_call_cancelled_anywhere_leaves_nothing(
    scenario: Scenario, connected: bool
) -> None:
    step = 0
    finished = False
    while not finished:
        step += 1
        service = Echo()
        async with trio.open_nursery() as nursery:
            wire = lockstep(scenario, service, nursery)
            channel = Channel(wire.dial)
            await nursery.start(channel.run)
            echo = EchoStub(channel)
            if connected:
                await echo.unary(Raw(b"connect"))
            with CancelAt(step) as cancel, cancel.scope:
                await scenario(echo)
            finished = not cancel.scope.cancelled_caught
            await wait_all_tasks_blocked()
            assert service.active == 0
            assert channel._current is None or not channel._current.streams
            with trio.fail_after(10):
                await unary(echo)
            assert len(wire.ends) == 1
            nursery.cancel_scope.cancel()
    assert step > 1


@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_others_do_not_notice_a_cancelled_call(scenario: Scenario) -> None:
    for step in range(1, 12):
        async with trio.open_nursery() as nursery:
            wire = lockstep(scenario, Echo(), nursery)
            channel = Channel(wire.dial)
            await nursery.start(channel.run)
            echo = EchoStub(channel)

            async def cancelled(echo: EchoStub = echo, step: int = step) -> None:
                with CancelAt(step) as cancel, cancel.scope:
                    await scenario(echo)

            async with trio.open_nursery() as calls:
                calls.start_soon(cancelled)
                for other in (unary, stream_stream, conversation):
                    calls.start_soon(other, echo)
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_a_channel_stopped_anywhere_ends_its_calls(scenario: Scenario) -> None:
    """The channel's task is cancelled at each of its own steps, and at each of the caller's."""
    for step in range(1, 30):
        service = Echo()
        async with trio.open_nursery() as nursery:
            wire = lockstep(scenario, service, nursery)
            channel = Channel(wire.dial)
            life = trio.CancelScope()

            async def run(
                task_status: trio.TaskStatus[None],
                channel: Channel = channel,
                life: trio.CancelScope = life,
            ) -> None:
                with life:
                    await channel.run(task_status=task_status)

            await nursery.start(run)
            stop = CancelAt(step)
            stop.scope = life
            with stop, trio.fail_after(10):
                with maybe_unavailable():
                    await scenario(EchoStub(channel))
            life.cancel()
            await wait_all_tasks_blocked()
            assert service.active == 0
            assert not channel.connected.value
            for near, _ in wire.ends:
                with pytest.raises(trio.ClosedResourceError):
                    await near.send_all(b"x")
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_a_server_stopped_anywhere_ends_the_calls(scenario: Scenario) -> None:
    for step in range(1, 30):
        service = Echo()
        async with trio.open_nursery() as nursery:
            async with trio.open_nursery() as servers:
                wire = lockstep(scenario, service, servers)
                channel = Channel(wire.dial)
                await nursery.start(channel.run)
                stop = CancelAt(step)
                stop.scope = servers.cancel_scope

                async def call(stop: CancelAt = stop, channel: Channel = channel) -> None:
                    with stop, trio.fail_after(10):
                        with maybe_unavailable():
                            await scenario(EchoStub(channel))
                    stop.scope.cancel()

                nursery.start_soon(call)
                await trio.sleep_forever()
            assert service.active == 0
            nursery.cancel_scope.cancel()
