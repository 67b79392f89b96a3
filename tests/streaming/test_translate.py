"""A command's WebSocket client before a runtime that speaks SPDY, in virtual time."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
from trio.abc import HalfCloseableStream
from trio.testing import MockClock, memory_stream_pair, wait_all_tasks_blocked
from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Ping

from kubelet_trio.cri import StreamOptions
from kubelet_trio.streaming import SpdyLink, SpdyStream, WebSocket, translate_command

SUCCESS = b'{"metadata":{},"status":"Success"}'


class Client:
    """Reads when it is told to, as a client behind a slow connection does."""

    def __init__(self, stream: HalfCloseableStream) -> None:
        self._stream, self._wire = stream, Connection(ConnectionType.CLIENT)
        self.has_ended = False

    async def read(self) -> list[bytes]:
        """Return what has arrived, in order; answer a Close."""
        await wait_all_tasks_blocked()
        self._wire.receive_data(bytes(await self._stream.receive_some(1 << 20)))
        found = []
        for event in self._wire.events():
            if isinstance(event, BytesMessage):
                found.append(bytes(event.data))
            elif isinstance(event, CloseConnection):
                assert event.code == 1000
                self.has_ended = True
                await self._stream.send_all(self._wire.send(event.response()))
        return found

    async def ping(self) -> None:
        await self._stream.send_all(self._wire.send(Ping()))


class Runtime:
    """The streams of a command, as a runtime has them."""

    def __init__(self, link: SpdyLink, streams: dict[str, SpdyStream]) -> None:
        self.link, self.streams = link, streams

    async def say(self, name: str, content: bytes) -> None:
        await self.streams[name].send_all(content)

    async def end(self) -> None:
        for stream in self.streams.values():
            await stream.send_eof()


@asynccontextmanager
async def translated(options: StreamOptions) -> AsyncIterator[tuple[Client, Runtime]]:
    """Yield both ends; the translation has to end by itself."""
    client, ours = memory_stream_pair()
    asking, asked = memory_stream_pair()
    upper, lower = SpdyLink(asking, is_client=True), SpdyLink(asked, is_client=False)
    wanted = 1 + options.stdin + options.stdout + options.stderr + options.tty
    async with trio.open_nursery() as links:
        links.start_soon(upper.run)
        links.start_soon(lower.run)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_translate, ours, upper, options)
            opened = [await lower.offered.receive() for _ in range(wanted)]
            streams = {stream.headers["streamtype"]: stream for stream in opened}
            yield Client(client), Runtime(lower, streams)
        links.cancel_scope.cancel()


async def _translate(client: HalfCloseableStream, link: SpdyLink, options: StreamOptions) -> None:
    async with client:
        await translate_command(WebSocket(client), link, options)


def options(**given: bool) -> StreamOptions:
    none = {"stdin": False, "stdout": False, "stderr": False, "tty": False}
    return StreamOptions(**{**none, **given})


async def test_the_outcome_comes_after_the_last_output() -> None:
    async with translated(options(stdout=True, stderr=True)) as (client, runtime):
        assert await client.read() == [b"\1"]  # the command is connected
        await runtime.say("error", SUCCESS)
        await runtime.streams["error"].send_eof()
        await runtime.say("stderr", b"oh")
        assert await client.read() == [b"\2oh"]
        await runtime.say("stdout", b"last")
        await runtime.end()
        assert await client.read() == [b"\1last", b"\3" + SUCCESS]
    assert client.has_ended


async def test_a_command_without_output_begins_on_the_channel_of_errors() -> None:
    async with translated(options(stdin=True)) as (client, runtime):
        assert await client.read() == [b"\3"]
        await runtime.say("error", SUCCESS)
        await runtime.end()
        assert await client.read() == [b"\3" + SUCCESS]


async def test_a_runtime_that_ends_without_an_outcome_is_a_failure() -> None:
    async with translated(options(stdout=True)) as (client, runtime):
        assert await client.read() == [b"\1"]
        await runtime.say("stdout", b"some")
        await runtime.end()
        some, told = await client.read()
    assert some == b"\1some"
    outcome = json.loads(told[1:])
    assert (told[0], outcome["reason"]) == (3, "InternalError")
    assert outcome["message"] == (
        "Internal error occurred: the runtime did not tell how the command ended"
    )


async def test_a_slow_client_gets_all_however_long_it_takes(autojump_clock: MockClock) -> None:
    async with translated(options(stdout=True)) as (client, runtime):
        await runtime.say("stdout", b"x" * 1000)
        await runtime.say("error", SUCCESS)
        await runtime.end()
        for _ in range(12):  # two minutes of kubectl's pings
            await trio.sleep(10)
            await client.ping()
        assert await client.read() == [b"\1", b"\1" + b"x" * 1000, b"\3" + SUCCESS]


async def test_a_client_that_never_closes_is_left_in_the_end(autojump_clock: MockClock) -> None:
    began = trio.current_time()
    async with translated(options(stdout=True)) as (_client, runtime):
        await runtime.say("error", SUCCESS)
        await runtime.end()
    assert trio.current_time() - began == 15 * 60
