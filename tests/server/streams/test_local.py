"""Exec, attach and port-forward served by the agent itself, over SPDY and WebSocket."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress

import pytest
import trio
from trio.abc import HalfCloseableStream
from trio.testing import MockClock, memory_stream_pair
from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Ping, Pong, TextMessage

from kubelet_trio.cri import RuntimeCallError
from kubelet_trio.model import ContainerId, SandboxId
from kubelet_trio.server import ApiOptions, ApiParts, kubelet_router, serve_connection
from kubelet_trio.streaming import SpdyLink
from kubelet_trio.streaming.spdy_link import SpdyStream
from kubelet_trio.testing import TrioClock
from tests.server.node_view import FakeKubeletApiView
from tests.server.streams.test_routes import read_head

_LIMIT = 60.0  # s of virtual time, where there is any
EXEC = "/exec/default/web-node1/web?command=cat&input=1&output=1&error=1"
TTY = "/exec/default/web-node1/web?command=sh&input=1&output=1&tty=1"
ATTACH = "/attach/default/web-node1/web?input=1&output=1&error=1"
FORWARD = "/portForward/default/web-node1"


class Command:
    """Says back what it hears; `bad` on stderr; ends with its input, by 3 after `fail`."""

    def __init__(self) -> None:
        self.exit_code: int | None = None
        self.sizes: list[tuple[int, int]] = []
        self._say, self._said = trio.open_memory_channel[tuple[str, bytes]](100)
        self._code = 0

    async def receive(self) -> tuple[str, bytes] | None:
        try:
            return await self._said.receive()
        except trio.EndOfChannel:
            self.exit_code = self._code
            return None

    async def send_stdin(self, content: bytes) -> None:
        await self._say.send(("stderr" if b"bad" in content else "stdout", content))
        if b"fail" in content:
            self._code = 3

    async def end_stdin(self) -> None:
        self._say.close()

    async def resize(self, rows: int, columns: int) -> None:
        self.sizes.append((rows, columns))
        await self._say.send(("stdout", f"{rows}x{columns};".encode()))


class Deaf(Command):
    """Takes no input and says nothing, as `sleep` does."""

    async def send_stdin(self, content: bytes) -> None:
        await trio.sleep_forever()


class Local:
    """The streams of a runtime: every command is a `Command`, port 80 says back what it hears."""

    def __init__(self) -> None:
        self.make: Callable[[], Command] = Command
        self.opened: list[tuple[object, ...]] = []
        self.left = trio.Event()
        self.refusal = ""
        self.nursery: trio.Nursery | None = None  # of what answers on ports

    @asynccontextmanager
    async def _command(self) -> AsyncIterator[Command]:
        if self.refusal:
            raise RuntimeCallError("Exec", self.refusal)
        try:
            yield self.make()
        finally:
            self.left.set()

    def open_exec(
        self,
        container_id: ContainerId,
        command: Sequence[str],
        *,
        tty: bool = False,
        stdin: bool = False,
    ) -> AbstractAsyncContextManager[Command]:
        self.opened.append((container_id, tuple(command), tty, stdin))
        return self._command()

    def open_attach(self, container_id: ContainerId) -> AbstractAsyncContextManager[Command]:
        self.opened.append((container_id,))
        return self._command()

    async def open_port(self, sandbox_id: SandboxId, port: int) -> HalfCloseableStream:
        await trio.lowlevel.checkpoint()
        if port != 80:
            raise OSError(111, "Connection refused")
        ours, theirs = memory_stream_pair()
        assert self.nursery is not None
        self.nursery.start_soon(_answer, theirs)
        return ours


async def _answer(stream: HalfCloseableStream) -> None:
    async with stream:
        heard = b"".join([bytes(piece) async for piece in stream])
        with suppress(trio.BrokenResourceError):
            await stream.send_all(b"you said " + heard)


class Node:
    """A node whose runtime has streams and no URLs."""

    def __init__(self, idle: float = 0.0) -> None:
        self.view = FakeKubeletApiView()
        self.local = Local()
        self.view.fake_runtime.local_streams = self.local
        options = ApiOptions(streaming_idle_timeout=idle)
        self._router = kubelet_router(ApiParts(self.view, TrioClock(), {}, options))

    @asynccontextmanager
    async def run(self) -> AsyncIterator[HalfCloseableStream]:
        client, server = memory_stream_pair()
        async with trio.open_nursery() as nursery:
            self.local.nursery = nursery
            nursery.start_soon(serve_connection, server, self._router)
            with trio.fail_after(_LIMIT):
                yield client
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()

    @asynccontextmanager
    async def spdy(self, path: str, protocol: str = "v4.channel.k8s.io") -> AsyncIterator[SpdyLink]:
        async with self.run() as client:
            await client.send_all(
                f"POST {path} HTTP/1.1\r\nHost: node\r\nConnection: Upgrade\r\n"
                "Upgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: v9.nothing\r\n"
                f"X-Stream-Protocol-Version: {protocol}\r\n\r\n".encode()
            )
            head, rest = await read_head(client)
            assert head.startswith(b"HTTP/1.1 101"), head
            assert f"x-stream-protocol-version: {protocol}" in head.decode().lower()
            async with trio.open_nursery() as nursery:
                link = SpdyLink(client, is_client=True, early=rest)
                nursery.start_soon(link.run)
                yield link
                nursery.cancel_scope.cancel()

    @asynccontextmanager
    async def websocket(self, path: str, protocol: str) -> AsyncIterator[Socket]:
        async with self.run() as client:
            await client.send_all(_websocket_head(path, protocol))
            head, rest = await read_head(client)
            assert head.startswith(b"HTTP/1.1 101"), head + rest
            # The example of RFC 6455, section 1.3.
            assert b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" in head
            if protocol:
                assert f"Sec-WebSocket-Protocol: {protocol}" in head.decode()
            yield Socket(client, rest)


def _websocket_head(path: str, protocol: str) -> bytes:
    named = f"Sec-WebSocket-Protocol: v9.nothing, {protocol}\r\n" if protocol else ""
    return (
        f"GET {path} HTTP/1.1\r\nHost: node\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        f"{named}\r\n"
    ).encode()


class Socket:
    """The client's side of a WebSocket."""

    def __init__(self, stream: HalfCloseableStream, early: bytes) -> None:
        self._stream, self._early = stream, early
        self._wire = Connection(ConnectionType.CLIENT)
        self._found: list[bytes] = []
        self._is_over = False

    async def send(self, data: bytes) -> None:
        await self._stream.send_all(self._wire.send(BytesMessage(data)))

    async def send_text(self, data: str) -> None:
        await self._stream.send_all(self._wire.send(TextMessage(data)))

    async def ping(self) -> None:
        await self._stream.send_all(self._wire.send(Ping(b"there?")))

    async def receive(self) -> bytes:
        """Return the next message, `pong`, or nothing at the end."""
        while not self._found and not self._is_over:
            data, self._early = self._early, b""
            data = data or bytes(await self._stream.receive_some())
            self._wire.receive_data(data or None)
            for event in self._wire.events():
                if isinstance(event, BytesMessage | TextMessage):
                    assert event.message_finished
                    text = event.data
                    self._found.append(text.encode() if isinstance(text, str) else bytes(text))
                elif isinstance(event, Pong):
                    self._found.append(b"pong")
                elif isinstance(event, CloseConnection):
                    self._is_over = True
                    if data:
                        await self._stream.send_all(self._wire.send(event.response()))
                        await self._stream.aclose()
        return self._found.pop(0) if self._found else b""

    async def receive_all(self) -> list[bytes]:
        found = []
        while message := await self.receive():
            found.append(message)
        return found

    async def close(self) -> None:
        await self._stream.aclose()


class SocketBytes(HalfCloseableStream):
    """What is in the messages, as a stream."""

    def __init__(self, socket: Socket) -> None:
        self._socket = socket

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        return await self._socket.receive()

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._socket.send(bytes(data))

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def send_eof(self) -> None:
        await self._socket.close()

    async def aclose(self) -> None:
        await self._socket.close()


def by_channel(messages: list[bytes]) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    for message in messages:
        found[message[0]] = found.get(message[0], b"") + message[1:]
    return found


async def open_streams(link: SpdyLink, *names: str) -> dict[str, SpdyStream]:
    return {name: await link.open({"streamtype": name}) for name in names}


async def read_all(stream: SpdyStream) -> bytes:
    said = b""
    while piece := await stream.receive_some():
        said += piece
    return said


async def forward_in_spdy(socket: Socket, said: bytes) -> bytes:
    """Say something to port 80 through SPDY in a WebSocket; return the answer."""
    async with trio.open_nursery() as nursery:
        link = SpdyLink(SocketBytes(socket), is_client=True)
        nursery.start_soon(link.run)
        named = {"port": "80", "requestID": "0"}
        await link.open({**named, "streamtype": "error"})
        data = await link.open({**named, "streamtype": "data"})
        await data.send_all(said)
        await data.send_eof()
        answer = await read_all(data)
        nursery.cancel_scope.cancel()
    return answer


async def test_a_command_over_spdy(autojump_clock: MockClock) -> None:
    node = Node()
    async with node.spdy(EXEC) as link:
        streams = await open_streams(link, "error", "stdin", "stdout", "stderr")
        await streams["stdin"].send_all(b"good;fail")
        await streams["stdin"].send_eof()
        assert await read_all(streams["stdout"]) == b"good;fail"
        assert await read_all(streams["stderr"]) == b""
        status = json.loads(await read_all(streams["error"]))
    assert status["details"]["causes"] == [{"reason": "ExitCode", "message": "3"}]
    assert node.local.opened == [("c1", ("cat",), False, True)]


async def test_a_terminal_over_spdy_has_sizes_and_one_output(autojump_clock: MockClock) -> None:
    node = Node()
    async with node.spdy(TTY, "v3.channel.k8s.io") as link:
        streams = await open_streams(link, "error", "stdin", "stdout", "resize")
        await streams["resize"].send_all(b'{"Width":80,"Height":24}\n{"Width":')
        await streams["resize"].send_all(b'9,"Height":8}\n')
        assert await streams["stdout"].receive_some() == b"24x80;"
        assert await streams["stdout"].receive_some() == b"8x9;"
        await streams["stdin"].send_eof()
        assert await read_all(streams["error"]) == b""  # before v4 success has no words


async def test_a_client_that_goes_takes_its_command_along(autojump_clock: MockClock) -> None:
    node = Node()
    async with node.spdy(EXEC) as link:
        await open_streams(link, "error", "stdin", "stdout", "stderr")
        await link._connection.aclose()
        await node.local.left.wait()


@pytest.mark.parametrize("pieces", [1, 100])
async def test_a_client_that_goes_is_noticed_while_its_command_takes_no_input(
    autojump_clock: MockClock, pieces: int
) -> None:
    node = Node()
    node.local.make = Deaf
    async with node.spdy(EXEC) as link:
        streams = await open_streams(link, "error", "stdin", "stdout", "stderr")
        for _ in range(pieces):
            await streams["stdin"].send_all(b"x" * 10_000)
        await link._connection.aclose()
        await node.local.left.wait()


@pytest.mark.parametrize("pieces", [1, 100])
@pytest.mark.parametrize("protocol", ["v4.channel.k8s.io", "v5.channel.k8s.io"])
async def test_a_websocket_client_that_goes_is_noticed_while_its_command_takes_no_input(
    autojump_clock: MockClock, pieces: int, protocol: str
) -> None:
    node = Node()
    node.local.make = Deaf
    async with node.websocket(EXEC, protocol) as socket:
        for _ in range(pieces):
            await socket.send(b"\0" + b"x" * 10_000)
        await socket.close()
        await node.local.left.wait()


async def test_a_command_that_takes_no_input_is_idle_all_the_same(
    autojump_clock: MockClock,
) -> None:
    node = Node(idle=50)
    node.local.make = Deaf
    async with node.spdy(EXEC) as link:
        streams = await open_streams(link, "error", "stdin", "stdout", "stderr")
        began = trio.current_time()
        for _ in range(100):
            await streams["stdin"].send_all(b"x" * 10_000)
        await link.ended.wait()
        assert 50 <= trio.current_time() - began <= 50.5  # pings are no traffic
    assert node.local.left.is_set()


async def test_a_client_that_opens_too_few_streams_gets_no_command(
    autojump_clock: MockClock,
) -> None:
    node = Node()
    async with node.spdy(EXEC) as link:
        await open_streams(link, "error", "stdin", "stdout", "strange")
        began = trio.current_time()
        await link.ended.wait()
        assert trio.current_time() - began == 30
    assert node.local.opened == []


async def test_what_cannot_be_run_is_said_on_the_error_stream(autojump_clock: MockClock) -> None:
    node = Node()
    node.local.refusal = "no such program"
    async with node.spdy(EXEC) as link:
        streams = await open_streams(link, "error", "stdin", "stdout", "stderr")
        status = json.loads(await read_all(streams["error"]))
    assert status["reason"] == "InternalError"
    assert "error executing command in container: " in status["message"]
    assert "no such program" in status["message"]


async def test_a_command_over_a_websocket_whose_client_ends_its_input(
    autojump_clock: MockClock,
) -> None:
    node = Node()
    async with node.websocket(EXEC, "v5.channel.k8s.io") as socket:
        await socket.ping()
        await socket.send(b"\0hello")
        await socket.send(b"\0bad fail")
        await socket.send(b"\xff\0")
        said = await socket.receive_all()
    said.remove(b"pong")
    assert said[0] == b"\x01"  # the other side is there
    found = by_channel(said)
    assert (found[1], found[2]) == (b"hello", b"bad fail")
    assert json.loads(found[3])["reason"] == "NonZeroExitCode"


async def test_a_websocket_in_base64(autojump_clock: MockClock) -> None:
    node = Node()
    async with node.websocket(TTY, "base64.channel.k8s.io") as socket:
        assert await socket.receive() == b"1"
        await socket.send_text("4eyJXaWR0aCI6ODAsIkhlaWdodCI6MjR9")
        assert await socket.receive() == b"1MjR4ODA7"
        await socket.send_text("0aGVsbG8=")
        assert await socket.receive() == b"1aGVsbG8="
        await socket.send_text("0===")  # no base64: nothing of it can be trusted
        assert await socket.receive_all() == []
    assert node.local.left.is_set()


async def test_whoever_attaches_learns_nothing_of_the_exit_code(autojump_clock: MockClock) -> None:
    node = Node()
    async with node.websocket(ATTACH, "v5.channel.k8s.io") as socket:
        await socket.send(b"\0fail")
        await socket.send(b"\xff\0")
        found = by_channel(await socket.receive_all())
    assert json.loads(found[3])["status"] == "Success"
    assert node.local.opened == [("c1",)]


async def test_a_stream_without_a_byte_is_ended(autojump_clock: MockClock) -> None:
    node = Node(idle=50)
    async with node.spdy(EXEC) as link:
        await open_streams(link, "error", "stdin", "stdout", "stderr")
        began = trio.current_time()
        await link.ended.wait()
        assert 50 <= trio.current_time() - began <= 50.5
    assert node.local.left.is_set()


async def test_forwarded_connections_over_spdy(autojump_clock: MockClock) -> None:
    async with Node().spdy(FORWARD, "portforward.k8s.io") as link:
        for number in range(3):
            named = {"port": "80", "requestID": str(number)}
            error = await link.open({**named, "streamtype": "error"})
            data = await link.open({**named, "streamtype": "data"})
            await error.send_eof()
            await data.send_all(b"this")
            await data.send_eof()
            assert await read_all(data) == b"you said this"
            assert await read_all(error) == b""
        error = await link.open({"port": "81", "streamtype": "error"})
        data = await link.open({"port": "81", "streamtype": "data"})
        told = (await read_all(error)).decode()
        assert told.startswith("error forwarding port 81 to pod s1, uid : ")
        assert "Connection refused" in told
        assert await read_all(data) == b""


async def test_half_a_forwarded_connection_is_reset(autojump_clock: MockClock) -> None:
    async with Node().spdy(FORWARD, "portforward.k8s.io") as link:
        lonely = await link.open({"port": "80", "requestID": "1", "streamtype": "data"})
        with pytest.raises(trio.BrokenResourceError):
            await read_all(lonely)
        assert trio.current_time() == 30
        nonsense = await link.open({"port": "no", "requestID": "2", "streamtype": "data"})
        with pytest.raises(trio.BrokenResourceError):
            await read_all(nonsense)


async def test_spdy_in_a_websocket(autojump_clock: MockClock) -> None:
    async with Node().websocket(FORWARD, "SPDY/3.1+portforward.k8s.io") as socket:
        assert await forward_in_spdy(socket, b"this") == b"you said this"


async def test_ports_in_a_websocket(autojump_clock: MockClock) -> None:
    path = f"{FORWARD}?port=80&port=81"
    async with Node().websocket(path, "v4.channel.k8s.io") as socket:
        found: dict[int, bytes] = {}
        while len(found.get(3, b"")) <= 2:
            message = await socket.receive()
            found[message[0]] = found.get(message[0], b"") + message[1:]
        await socket.send(b"\0this")
        await socket.close()
    assert (found[0], found[1], found[2]) == (b"P\0", b"P\0", b"Q\0")
    assert found[3].startswith(b"Q\0error forwarding port 81 to pod s1, uid : ")


@pytest.mark.parametrize(
    ("head", "status", "told"),
    [
        (_websocket_head(EXEC, "v7.channel.k8s.io"), 400, b"none of the protocols"),
        (_websocket_head(EXEC, "").replace(b"13", b"8"), 400, b"version 13"),
        (
            f"POST {EXEC} HTTP/1.1\r\nHost: node\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n"
            "X-Stream-Protocol-Version: v9.nothing\r\n\r\n".encode(),
            403,
            b"unable to negotiate protocol",
        ),
        (
            f"POST {EXEC} HTTP/1.1\r\nHost: node\r\nConnection: Upgrade\r\n"
            "Upgrade: SPDY/3.1\r\n\r\n".encode(),
            400,
            b"X-Stream-Protocol-Version is required",
        ),
        (
            f"POST {EXEC} HTTP/1.1\r\nHost: node\r\nConnection: Upgrade\r\n"
            "Upgrade: telnet\r\n\r\n".encode(),
            400,
            b"neither SPDY/3.1 nor websocket",
        ),
        (f"GET {EXEC} HTTP/1.1\r\nHost: node\r\n\r\n".encode(), 500, b"Upgrade request required"),
    ],
)
async def test_refusals(autojump_clock: MockClock, head: bytes, status: int, told: bytes) -> None:
    async with Node().run() as client:
        await client.send_all(head)
        answer, body = await read_head(client)
        while told not in body:
            piece = await client.receive_some()
            assert piece, body
            body += bytes(piece)
    assert answer.startswith(f"HTTP/1.1 {status} ".encode())
