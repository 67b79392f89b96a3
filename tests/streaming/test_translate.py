"""A command's WebSocket client before a runtime that speaks SPDY, in virtual time."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.abc import HalfCloseableStream
from trio.testing import (
    MockClock,
    memory_stream_pair,
    wait_all_tasks_blocked,
)
from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Ping

from kubelet_trio.cri import StreamOptions
from kubelet_trio.streaming import SpdyLink, SpdyStream, WebSocket, spdy, translate_command

SUCCESS = b'{"metadata":{},"status":"Success"}'


class Client:
    """Reads when it is told to, as a client behind a slow connection does."""

    def __init__(self, stream: HalfCloseableStream) -> None:
        self._stream, self._wire = stream, Connection(ConnectionType.CLIENT)
        self._message = bytearray()
        self.has_ended = False

    async def read(self) -> list[bytes]:
        """Return what has arrived, in order; answer a Close."""
        await wait_all_tasks_blocked()
        self._wire.receive_data(bytes(await self._stream.receive_some(1 << 20)))
        found = []
        for event in self._wire.events():
            if isinstance(event, BytesMessage):
                self._message += event.data
                if event.message_finished:
                    found.append(bytes(self._message))
                    self._message.clear()
            elif isinstance(event, CloseConnection):
                assert event.code == 1000
                self.has_ended = True
                await self._stream.send_all(self._wire.send(event.response()))
        return found

    async def read_rest(self) -> list[bytes]:
        """Return what comes until the other side closes."""
        found = []
        while not self.has_ended:
            found += await self.read()
        return found

    async def ping(self) -> None:
        await self._stream.send_all(self._wire.send(Ping()))

    async def leave(self) -> None:
        await self._stream.send_eof()


class Runtime:
    """The streams of a command, as a runtime has them."""

    def __init__(
        self, link: SpdyLink, connection: HalfCloseableStream, streams: dict[str, SpdyStream]
    ) -> None:
        self.link, self.connection, self.streams = link, connection, streams

    async def say(self, name: str, content: bytes) -> None:
        await self.streams[name].send_all(content)

    async def say_at_once(self, said: Iterable[tuple[str, bytes]], *ended: str) -> None:
        """Send all of it, and the ends of streams, as one piece of the connection."""
        frames = [spdy.data(self.streams[name].stream_id, content) for name, content in said]
        frames += [spdy.data(self.streams[name].stream_id, b"", is_last=True) for name in ended]
        await self.link.send(b"".join(frames))

    async def leave(self) -> None:
        await self.connection.send_eof()

    async def end(self) -> None:
        for stream in self.streams.values():
            await stream.send_eof()


Pair = tuple[HalfCloseableStream, HalfCloseableStream]


@asynccontextmanager
async def translated(
    options: StreamOptions,
    client_pair: Pair | None = None,
    runtime_pair: Pair | None = None,
) -> AsyncIterator[tuple[Client, Runtime]]:
    """Yield both ends; the translation has to end by itself."""
    client, ours = client_pair or memory_stream_pair()
    asking, asked = runtime_pair or memory_stream_pair()
    upper, lower = SpdyLink(asking, is_client=True), SpdyLink(asked, is_client=False)
    wanted = 1 + options.stdin + options.stdout + options.stderr + options.tty
    async with trio.open_nursery() as links:
        links.start_soon(lower.run)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_translate, ours, upper, options)
            opened = [await lower.offered.receive() for _ in range(wanted)]
            streams = {stream.headers["streamtype"]: stream for stream in opened}
            yield Client(client), Runtime(lower, asked, streams)
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


ALL = ("error", "stdout", "stderr")
READ_MOST = 256 * 1024  # bytes


async def test_what_comes_at_once_is_a_message_for_each_run_of_a_channel() -> None:
    async with translated(options(stdout=True, stderr=True)) as (client, runtime):
        assert await client.read() == [b"\1"]
        said = [("stdout", b"a"), ("stdout", b"b"), ("stderr", b"c"), ("stdout", b"d")]
        await runtime.say_at_once([*said, ("error", SUCCESS), ("stderr", b"e")], *ALL)
        assert await client.read() == [b"\1ab", b"\2c", b"\1d", b"\2e", b"\3" + SUCCESS]


async def test_a_single_byte_does_not_wait_for_more() -> None:
    async with translated(options(stdout=True)) as (client, runtime):
        assert await client.read() == [b"\1"]
        for key in (b"l", b"s"):
            await runtime.say("stdout", key)
            assert await client.read() == [b"\1" + key]
        await runtime.say_at_once([("error", SUCCESS)], "error", "stdout")
        assert await client.read_rest() == [b"\3" + SUCCESS]


async def test_what_comes_on_other_streams_is_not_passed_on() -> None:
    wanted = options(stdin=True, stdout=True, tty=True)
    async with translated(wanted) as (client, runtime):
        assert await client.read() == [b"\1"]
        said = [("stdin", b"?"), ("stdout", b"a"), ("resize", b"?"), ("stdout", b"b")]
        await runtime.say_at_once([*said, ("error", SUCCESS)], "error", "stdout")
        assert await client.read() == [b"\1a", b"\1b", b"\3" + SUCCESS]


async def _translates(said: list[tuple[str, bytes]], cuts: list[int]) -> list[bytes]:
    found: list[bytes] = []
    async with translated(options(stdout=True, stderr=True)) as (client, runtime):
        found += await client.read()
        start = 0
        for cut in sorted({*(cut % (len(said) + 1) for cut in cuts), len(said)}):
            await runtime.say_at_once(said[start:cut])
            start = cut
        await runtime.say_at_once([("error", SUCCESS)], *ALL)
        found += await client.read_rest()
    return found


@given(
    st.lists(
        st.tuples(st.sampled_from(["stdout", "stderr"]), st.binary(min_size=1, max_size=300)),
        max_size=100,
    ),
    st.lists(st.integers(0, 1 << 16), max_size=4),
)
def test_outputs_keep_their_order_and_the_outcome_is_last(
    said: list[tuple[str, bytes]], cuts: list[int]
) -> None:
    first, *messages, last = trio.run(_translates, said, cuts)
    assert (first, last) == (b"\1", b"\3" + SUCCESS)
    told = [(message[0], bytes([byte])) for message in messages for byte in message[1:]]
    numbers = {"stdout": 1, "stderr": 2}
    assert told == [(numbers[name], bytes([byte])) for name, content in said for byte in content]


async def test_a_runtime_that_goes_within_a_frame_is_a_failure_after_what_has_come() -> None:
    async with translated(options(stdout=True)) as (client, runtime):
        assert await client.read() == [b"\1"]
        frame = spdy.data(runtime.streams["stdout"].stream_id, b"x" * 100)
        await runtime.link.send(frame[:50])
        assert await client.read() == [b"\1" + b"x" * 42]
        await runtime.leave()
        [told] = await client.read()
    assert (told[0], json.loads(told[1:])["reason"]) == (3, "InternalError")


class Heard(HalfCloseableStream):
    """Notes what comes over another stream."""

    def __init__(self, stream: HalfCloseableStream) -> None:
        self._stream, self.content = stream, bytearray()

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        data = bytes(await self._stream.receive_some(max_bytes))
        self.content += data
        return data

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def aclose(self) -> None:
        await self._stream.aclose()


class Tls(Heard):
    """Sends while there is room. As TLS, it sends nothing more after a send that was cancelled."""

    def __init__(self, stream: HalfCloseableStream) -> None:
        super().__init__(stream)
        self.room, self._is_over = trio.Event(), False
        self.room.set()

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        if self._is_over:
            raise trio.BrokenResourceError
        self._is_over = True
        await self.room.wait()
        await super().send_all(data)
        self._is_over = False


async def test_a_client_that_does_not_read_holds_the_runtime_back_after_one_read() -> None:
    client_end, ours = memory_stream_pair()
    asking, asked = memory_stream_pair()
    tls, heard = Tls(ours), Heard(asking)
    ends = translated(options(stdout=True), (client_end, tls), (heard, asked))
    async with ends as (client, runtime):
        assert await client.read() == [b"\1"]
        heard.content.clear()
        tls.room = trio.Event()
        contents = [bytes([number]) * READ_MOST for number in range(20)]
        for content in contents:
            await runtime.say_at_once([("stdout", content)])
        await runtime.say_at_once([("error", SUCCESS)], "error", "stdout")
        await wait_all_tasks_blocked()
        assert 0 < len(heard.content) <= READ_MOST
        tls.room.set()
        *messages, last = await client.read_rest()
    assert last == b"\3" + SUCCESS
    assert max(map(len, messages)) <= 1 + READ_MOST
    assert b"".join(message[1:] for message in messages) == b"".join(contents)


async def test_a_client_that_goes_during_output_is_left_at_once(autojump_clock: MockClock) -> None:
    client_end, ours = memory_stream_pair()
    tls, began = Tls(ours), trio.current_time()
    async with translated(options(stdout=True), (client_end, tls)) as (client, runtime):
        assert await client.read() == [b"\1"]
        tls.room = trio.Event()
        await runtime.say("stdout", b"x" * 1000)
        await wait_all_tasks_blocked()
        await client.leave()
    assert trio.current_time() == began


async def test_a_runtime_is_pinged_while_the_client_does_not_read(
    autojump_clock: MockClock,
) -> None:
    client_end, ours = memory_stream_pair()
    asking, asked = memory_stream_pair()
    tls, heard = Tls(ours), Heard(asked)
    ends = translated(options(stdout=True), (client_end, tls), (asking, heard))
    async with ends as (client, runtime):
        assert await client.read() == [b"\1"]
        await trio.sleep(100)
        assert spdy.ping(1) not in heard.content  # an idle command may be ended
        tls.room = trio.Event()
        await runtime.say_at_once([("stdout", b"x"), ("error", SUCCESS)], "error", "stdout")
        await trio.sleep(100)
        assert spdy.ping(1) in heard.content
        tls.room.set()
        assert await client.read_rest() == [b"\1x", b"\3" + SUCCESS]
