"""grpcio as the independent peer, on either side, over real sockets."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
import trio

from kubelet_trio.grpc import Channel, GRPCError, Server, Status, open_channel
from kubelet_trio.grpc import RawMessage as Raw
from tests.grpc.echo import PATH, Echo, EchoStub

LARGEST = 16 << 20
OPTIONS = [("grpc.max_receive_message_length", LARGEST), ("grpc.max_send_message_length", -1)]


class Grpcio:
    """The echo service on grpcio; `gone` is set when a hanging call was ended by its caller."""

    def __init__(self, target: str, *options: tuple[str, Any]) -> None:
        self.gone = threading.Event()
        self.streaming = threading.Event()
        self.metadata: dict[str, Any] = {}
        self.time_left: float | None = None
        self.server = grpc.server(
            ThreadPoolExecutor(8), options=[*OPTIONS, *options, ("grpc.so_reuseport", 0)]
        )
        self.server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(
                    "test.Echo",
                    {
                        "unary": grpc.unary_unary_rpc_method_handler(self.unary),
                        "count": grpc.unary_stream_rpc_method_handler(self.count),
                        "join": grpc.stream_unary_rpc_method_handler(self.join),
                        "double": grpc.stream_stream_rpc_method_handler(self.double),
                        "early": grpc.stream_unary_rpc_method_handler(self.early),
                    },
                ),
            )
        )
        self.port = self.server.add_insecure_port(target)
        self.server.start()

    def unary(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        self.metadata = dict(context.invocation_metadata())
        self.time_left = context.time_remaining()
        if request == b"fail":
            context.set_trailing_metadata((("x-last", "2"), ("x-bin", b"\xff\x00")))
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "naïve: 100%\n")
        if request == b"hang":
            context.add_callback(self.gone.set)
            self.gone.wait(10)
        return request if len(request) > 1000 else b"re:" + request

    def count(self, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        context.add_callback(self.gone.set)
        left = int(request)
        while left and context.is_active():
            yield b"%d" % left
            self.streaming.set()
            left -= 1

    def join(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        return b",".join(requests)

    def double(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        for request in requests:
            yield request * 2

    def early(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        return next(requests)


@contextmanager
def grpcio_server(target: str, *options: tuple[str, Any]) -> Iterator[Grpcio]:
    server = Grpcio(target, *options)
    try:
        yield server
    finally:
        server.gone.set()
        server.server.stop(None).wait()


@pytest.fixture(params=["unix", "tcp"])
def theirs(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Grpcio, str]]:
    if request.param == "unix":
        target = f"unix://{tmp_path}/grpcio.sock"
        with grpcio_server(target) as server:
            yield server, target
    else:
        with grpcio_server("127.0.0.1:0") as server:
            yield server, f"127.0.0.1:{server.port}"


# Our client, their server


async def test_all_shapes_against_their_server(theirs: tuple[Grpcio, str]) -> None:
    async with open_channel(theirs[1]) as channel:
        echo = EchoStub(channel)
        assert await echo.unary(Raw(b"a")) == b"re:a"
        assert await echo.count(Raw(b"300")) == [b"%d" % n for n in range(300, 0, -1)]
        assert await echo.join([Raw(b"a"), Raw(b"b"), Raw(b"")]) == b"a,b,"
        assert await echo.double([Raw(b"a"), Raw(b"b")]) == [b"aa", b"bb"]
        assert await echo.early([Raw(b"%d" % n) for n in range(50)]) == b"0"
        with pytest.raises(GRPCError) as caught:
            await echo.missing(Raw(b""))
        assert caught.value.status is Status.UNIMPLEMENTED


async def test_a_conversation_with_their_server(theirs: tuple[Grpcio, str]) -> None:
    async with open_channel(theirs[1]) as channel, EchoStub(channel).double.open() as call:
        for word in (b"a", b"bc", b"d" * 100_000):
            await call.send_message(Raw(word))
            assert await call.recv_message() == word * 2
        await call.end()
        assert await call.recv_message() is None


async def test_metadata_and_deadline_reach_their_server(theirs: tuple[Grpcio, str]) -> None:
    server, target = theirs
    async with open_channel(target) as channel:
        metadata: dict[str, str | bytes] = {"x-say": "hi", "x-raw-bin": b"\x00\xff"}
        await EchoStub(channel).unary(Raw(b"a"), timeout=60, metadata=metadata)
    assert server.metadata["x-say"] == "hi"
    assert server.metadata["x-raw-bin"] == b"\x00\xff"
    assert server.time_left == pytest.approx(60, abs=5)


async def test_their_errors_are_read(theirs: tuple[Grpcio, str]) -> None:
    async with open_channel(theirs[1]) as channel, EchoStub(channel).unary.open() as call:
        await call.send_message(Raw(b"fail"), end=True)
        with pytest.raises(GRPCError) as caught:
            await call.recv_message()
        assert caught.value.status is Status.FAILED_PRECONDITION
        assert caught.value.message == "naïve: 100%\n"
        assert call.trailing_metadata == (("x-last", "2"), ("x-bin", b"\xff\x00"))


async def test_a_deadline_and_a_cancellation_reach_their_server(theirs: tuple[Grpcio, str]) -> None:
    server, target = theirs
    async with open_channel(target) as channel:
        with pytest.raises(GRPCError) as caught:
            await EchoStub(channel).unary(Raw(b"hang"), timeout=0.2)
        assert caught.value.status is Status.DEADLINE_EXCEEDED
        assert await trio.to_thread.run_sync(server.gone.wait, 10)

        server.gone.clear()
        async with EchoStub(channel).count.open() as call:
            await call.send_message(Raw(b"-1"), end=True)
            await call.recv_message()
        assert await trio.to_thread.run_sync(server.gone.wait, 10)
        assert await EchoStub(channel).unary(Raw(b"a")) == b"re:a"


async def test_16_mib_go_to_their_server_and_back(theirs: tuple[Grpcio, str]) -> None:
    async with open_channel(theirs[1]) as channel:
        message = Raw(bytes(range(256)) * (LARGEST // 256))
        assert await EchoStub(channel).unary(message) == message
        replies: list[bool] = []

        async def call(size: int) -> None:
            message = Raw(bytes(size))
            replies.append(await EchoStub(channel).unary(message) == message)

        async with trio.open_nursery() as nursery:
            for n in range(4):
                nursery.start_soon(call, 1_000_000 + n)
        assert replies == [True] * 4


async def test_their_server_stops_gracefully_and_comes_back(tmp_path: Path) -> None:
    target = f"unix://{tmp_path}/grpcio.sock"
    async with open_channel(target) as channel:
        echo = EchoStub(channel)
        with grpcio_server(target) as server:
            async with echo.double.open() as call:
                await call.send_message(Raw(b"a"))
                assert await call.recv_message() == b"aa"
                stopped = server.server.stop(10)  # GOAWAY, and ten seconds for what runs
                await channel.connected.wait_value(False)
                await call.send_message(Raw(b"b"), end=True)
                assert await call.recv_message() == b"bb"
                assert await call.recv_message() is None
            assert await trio.to_thread.run_sync(stopped.wait, 10)
            with pytest.raises(GRPCError) as caught:
                await echo.unary(Raw(b"a"))
            assert caught.value.status is Status.UNAVAILABLE
        with grpcio_server(target):
            assert await echo.unary(Raw(b"a")) == b"re:a"


async def test_their_server_killed_under_a_call(theirs: tuple[Grpcio, str]) -> None:
    server, target = theirs
    async with open_channel(target) as channel, EchoStub(channel).double.open() as call:
        await call.send_message(Raw(b"a"))
        assert await call.recv_message() == b"aa"
        server.server.stop(None)
        with pytest.raises(GRPCError) as caught:
            await call.recv_message()
        assert caught.value.status in (Status.UNAVAILABLE, Status.CANCELLED)


async def test_their_limit_on_streams_is_kept(tmp_path: Path) -> None:
    target = f"unix://{tmp_path}/grpcio.sock"
    options = ("grpc.max_concurrent_streams", 1)
    with grpcio_server(target, options) as server:
        async with open_channel(target) as channel:
            order: list[bytes] = []

            async def call(request: bytes) -> None:
                order.append(await EchoStub(channel).unary(Raw(request)))

            async with trio.open_nursery() as nursery:
                async with EchoStub(channel).double.open() as first:
                    await first.send_message(Raw(b"a"))
                    await first.recv_message()
                    for n in range(5):
                        nursery.start_soon(call, b"%d" % n)
                    await trio.testing.wait_all_tasks_blocked(0.05)
                    assert order == []
                    await first.end()
                    await first.recv_message()
            assert sorted(order) == [b"re:%d" % n for n in range(5)]
    assert server is not None


# Their client, our server


@asynccontextmanager
async def our_server(tmp_path: Path, service: Echo) -> AsyncIterator[tuple[str, Server]]:
    path = f"{tmp_path}/ours.sock"
    socket = trio.socket.socket(trio.socket.AF_UNIX)
    await socket.bind(path)
    socket.listen(10)
    server = Server([service])
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve, [trio.SocketListener(socket)])
        yield f"unix://{path}", server
        nursery.cancel_scope.cancel()


class Client:
    """A blocking client; every method is for a worker thread."""

    def __init__(self, target: str) -> None:
        self.channel = grpc.insecure_channel(target, options=OPTIONS)
        self.unary = self.channel.unary_unary(PATH + "unary")
        self.count = self.channel.unary_stream(PATH + "count")
        self.join = self.channel.stream_unary(PATH + "join")
        self.double = self.channel.stream_stream(PATH + "double")
        self.early = self.channel.stream_unary(PATH + "early")
        self.missing = self.channel.unary_unary(PATH + "missing")

    def all_shapes(self) -> None:
        assert self.unary(b"a", timeout=10) == b"re:a"
        assert list(self.count(b"300", timeout=10)) == [b"%d" % n for n in range(300, 0, -1)]
        assert self.join(iter([b"a", b"", b"b"]), timeout=10) == b"a,,b"
        assert list(self.double(iter([b"a", b"b"]), timeout=10)) == [b"aa", b"bb"]
        assert self.early((b"%d" % n for n in range(5000)), timeout=10) == b"0"

    def errors(self) -> None:
        with pytest.raises(grpc.RpcError) as caught:
            self.missing(b"")
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        with pytest.raises(grpc.RpcError) as caught:
            self.unary(b"fail")
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert caught.value.details() == "naïve: 100%\n"
        trailing = dict(caught.value.trailing_metadata())
        assert trailing["grpc-status-details-bin"] == b"\x00details"
        with pytest.raises(grpc.RpcError) as caught:
            self.unary(bytes(LARGEST + 1))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED

    def metadata(self) -> None:
        call = self.double(iter([b"a"]), metadata=(("x-say", "hi"), ("x-raw-bin", b"\x00\xff")))
        assert dict(call.initial_metadata()) == {"x-first": "1", "x-bin": b"\xff\x00"}
        assert list(call) == [b"aa"]
        assert dict(call.trailing_metadata())["x-last"] == "2"

    def large(self) -> None:
        message = bytes(range(256)) * (LARGEST // 256 - 1)
        assert self.unary(message, timeout=30) == b"re:" + message

    def deadline(self) -> None:
        with pytest.raises(grpc.RpcError) as caught:
            self.unary(b"hang", timeout=0.2)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED

    def cancelled(self) -> None:
        call = self.count(b"-1")
        assert next(call) == b"-1"
        call.cancel()

    def bug(self) -> None:
        with pytest.raises(grpc.RpcError) as caught:
            self.unary(b"bug")
        assert caught.value.code() is grpc.StatusCode.UNKNOWN


@pytest.mark.parametrize("what", ["all_shapes", "errors", "metadata", "large", "deadline", "bug"])
async def test_their_client_against_our_server(tmp_path: Path, what: str) -> None:
    service = Echo()
    async with our_server(tmp_path, service) as (target, _):
        client = Client(target)
        await trio.to_thread.run_sync(getattr(client, what))
        with trio.fail_after(5):
            await service.wait_idle()
        if what == "metadata":
            assert service.metadata == {"x-say": "hi", "x-raw-bin": b"\x00\xff"}
        await trio.to_thread.run_sync(client.channel.close)


async def test_their_cancellation_reaches_our_handler(tmp_path: Path) -> None:
    service = Echo()
    async with our_server(tmp_path, service) as (target, _):
        client = Client(target)
        await trio.to_thread.run_sync(client.cancelled)
        with trio.fail_after(5):
            await service.wait_idle()
        assert service.cancelled == 1
        await trio.to_thread.run_sync(client.channel.close)


async def test_our_server_drains_towards_their_client(tmp_path: Path) -> None:
    async with our_server(tmp_path, Echo()) as (target, server):
        client = Client(target)

        def converse() -> None:
            more = threading.Semaphore(0)

            def requests() -> Iterator[bytes]:
                yield b"a"
                more.acquire()
                yield b"b"

            replies = client.double(requests(), timeout=10)
            assert next(replies) == b"aa"
            trio.from_thread.run_sync(server.drain)
            assert client.unary(b"x", timeout=10) == b"re:x"  # on another connection
            more.release()
            assert list(replies) == [b"bb"]

        await trio.to_thread.run_sync(converse)
        await trio.to_thread.run_sync(client.channel.close)


async def test_a_client_of_ours_and_one_of_theirs_at_a_time(tmp_path: Path) -> None:
    async with our_server(tmp_path, Echo()) as (target, _), open_channel(target) as channel:
        client = Client(target)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, client.all_shapes)
            for _ in range(50):
                nursery.start_soon(_unary, channel)
        await trio.to_thread.run_sync(client.channel.close)


async def _unary(channel: Channel) -> None:
    assert await EchoStub(channel).unary(Raw(b"a")) == b"re:a"
