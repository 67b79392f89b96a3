"""The TLS stream against `ssl`'s own client: whatever is cut into whatever pieces arrives whole."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MemoryReceiveStream, MemorySendStream, MockClock, memory_stream_pair

from kubelet_trio.server.tls.stream import TlsStream
from tests.server.certificates import Authority

Pipe = trio.StapledStream[MemorySendStream, MemoryReceiveStream]
_AUTHORITY = Authority()
_PAIR = _AUTHORITY.sign_server()


@pytest.fixture(scope="session")
def server_context(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*_PAIR.write(tmp_path_factory.mktemp("tls"), "server"))
    return context


def client_context() -> ssl.SSLContext:
    return ssl.create_default_context(cadata=_AUTHORITY.pem.decode())


@asynccontextmanager
async def connected(
    context: ssl.SSLContext,
) -> AsyncIterator[tuple[trio.SSLStream[Pipe], TlsStream]]:
    left, right = memory_stream_pair()
    client = trio.SSLStream(left, client_context(), server_hostname="localhost")
    server = TlsStream(right, context)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.do_handshake)
        nursery.start_soon(server.do_handshake)
    yield client, server


@given(pieces=st.lists(st.binary(max_size=70_000), max_size=6), most=st.integers(1, 300_000))
@settings(max_examples=30)
def test_what_is_sent_arrives(
    server_context: ssl.SSLContext, pieces: list[bytes], most: int
) -> None:
    most = max(most, 100)  # a byte at a time is right too, and slow

    async def main() -> tuple[bytes, bytes]:
        async with connected(server_context) as (client, server):
            received, answered = bytearray(), bytearray()

            async def send_all(stream: trio.abc.Stream) -> None:
                for piece in pieces:
                    await stream.send_all(piece)
                await stream.aclose()

            async def read_client() -> None:
                async for piece in client:
                    answered.extend(piece)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(read_client)
                await send_all(server)
            async with connected(server_context) as (client, server):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(send_all, client)
                    while data := await server.receive_some(most):
                        received.extend(data)
                        assert len(data) <= most
            return bytes(received), bytes(answered)

    assert trio.run(main) == (b"".join(pieces), b"".join(pieces))


@given(parts=st.lists(st.binary(max_size=100_000), max_size=12))
@settings(max_examples=30)
def test_parts_arrive_in_their_order(server_context: ssl.SSLContext, parts: list[bytes]) -> None:
    async def main() -> bytes:
        async with connected(server_context) as (client, server):
            answered = bytearray()

            async def read_client() -> None:
                async for piece in client:
                    answered.extend(piece)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(read_client)
                await server.send_parts(map(memoryview, parts))
                await server.send_all(b"end")
                await server.aclose()
            return bytes(answered)

    assert trio.run(main) == b"".join(parts) + b"end"


async def test_many_records_are_one_read(server_context: ssl.SSLContext) -> None:
    async with connected(server_context) as (client, server):
        data = bytes(100_000)
        await client.send_all(data)
        assert len(await server.receive_some()) > 16384


async def test_an_end_without_a_good_bye_is_broken(server_context: ssl.SSLContext) -> None:
    async with connected(server_context) as (client, server):
        await client.transport_stream.aclose()
        with pytest.raises(trio.BrokenResourceError):
            await server.receive_some()


async def test_what_is_no_tls_is_broken(server_context: ssl.SSLContext) -> None:
    left, right = memory_stream_pair()
    await left.send_all(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
    with pytest.raises(trio.BrokenResourceError):
        await TlsStream(right, server_context).do_handshake()


async def test_a_send_that_was_cut_off_is_the_last(
    server_context: ssl.SSLContext, autojump_clock: MockClock
) -> None:
    async with connected(server_context) as (_, server):
        below = server._transport
        assert isinstance(below, trio.StapledStream)
        assert isinstance(below.send_stream, MemorySendStream)
        below.send_stream.send_all_hook = trio.sleep_forever
        with trio.move_on_after(1):
            await server.send_all(b"x")
        below.send_stream.send_all_hook = None
        with pytest.raises(trio.BrokenResourceError):
            await server.send_all(b"y")


async def test_closing_waits_for_nobody(
    server_context: ssl.SSLContext, autojump_clock: MockClock
) -> None:
    async with connected(server_context) as (client, server):
        await server.send_all(b"last words")
        await server.aclose()
        assert b"".join([bytes(piece) async for piece in client]) == b"last words"
        with pytest.raises(trio.BrokenResourceError):
            await server.send_all(b"more")
