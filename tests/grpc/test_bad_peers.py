"""What a peer may get wrong, byte by byte, and what becomes of our calls."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
import trio
import trio.testing
from hpack import Decoder
from hyperframe.frame import GoAwayFrame, HeadersFrame, PingFrame
from hypothesis import given
from hypothesis import strategies as st

from kubelet_trio.grpc import Channel, GRPCError, Server, Status, open_channel
from kubelet_trio.grpc import RawMessage as Raw
from tests.grpc.echo import PATH, Echo, EchoStub
from tests.grpc.raw_peer import (
    OK_HEADERS,
    PING,
    PREFACE,
    RawPeer,
    data,
    headers,
    message,
    read_until,
    reset,
    settings,
    trailers,
)

OK = headers(OK_HEADERS)
REPLY = OK + data(message(b"yes"))
GARBAGE = b"\x00\x00\x04\x08\x00\x00\x00\x00\x00\x00\x00\x00\x00"  # WINDOW_UPDATE by 0


@asynccontextmanager
async def channel_to(peer: RawPeer) -> AsyncIterator[Channel]:
    async with open_channel(peer.dial) as channel, trio.open_nursery() as nursery:
        await nursery.start(peer.serve)
        yield channel
        nursery.cancel_scope.cancel()


def status_html(code: int) -> bytes:
    fields = {":status": str(code), "content-type": "text/html"}
    return headers(fields) + data(b"<html>", end=True)


@pytest.mark.parametrize(
    ("answer", "status", "text"),
    [
        (None, Status.UNAVAILABLE, "closed"),
        (b"\xff" * 100, Status.UNAVAILABLE, "protocol"),
        (GARBAGE, Status.UNAVAILABLE, "protocol"),
        (data(message(b"no headers yet")), Status.UNAVAILABLE, "protocol"),
        (b"\x00\x00\x01\x01\x05\x00\x00\x00\x01\xff", Status.UNAVAILABLE, "protocol"),  # HPACK
        (status_html(503), Status.UNAVAILABLE, "503"),
        (status_html(404), Status.UNIMPLEMENTED, "404"),
        (status_html(401), Status.UNAUTHENTICATED, "401"),
        (status_html(403), Status.PERMISSION_DENIED, "403"),
        (status_html(400), Status.INTERNAL, "400"),
        (status_html(418), Status.UNKNOWN, "418"),
        (status_html(200), Status.UNKNOWN, "content-type"),
        (headers({"x": "no status"}), Status.UNKNOWN, "HTTP status 0"),
        (REPLY + trailers(None), Status.UNKNOWN, "without grpc-status"),
        (REPLY + data(b"", end=True), Status.UNKNOWN, "without grpc-status"),
        (REPLY + trailers("99"), Status.UNKNOWN, "99"),
        (REPLY + trailers("x"), Status.UNKNOWN, "x"),
        (REPLY + trailers("5"), Status.NOT_FOUND, ""),
        (OK + trailers("0"), Status.INTERNAL, "without a reply"),
        (headers(OK_HEADERS | {"grpc-status": "16"}, end=True), Status.UNAUTHENTICATED, ""),
        (headers({":status": "502", "grpc-status": "9"}, end=True), Status.FAILED_PRECONDITION, ""),
        (OK + data(message(b"", size=99) + b"part", end=True), Status.INTERNAL, "within a message"),
        (OK + data(b"\x00\x00", end=True), Status.UNKNOWN, "without grpc-status"),
        (OK + data(message(b"", size=2**30)), Status.RESOURCE_EXHAUSTED, "too large"),
        (OK + data(message(b"zip", flag=1)), Status.UNIMPLEMENTED, "compressed"),
        (OK + reset(0x2), Status.INTERNAL, "error code 2"),
        (OK + reset(0x8), Status.CANCELLED, "error code 8"),
        (OK + reset(0xB), Status.RESOURCE_EXHAUSTED, "error code 11"),
        (OK + reset(0xC), Status.PERMISSION_DENIED, "error code 12"),
        (OK + reset(0x7), Status.UNAVAILABLE, "error code 7"),
    ],
)
async def test_an_answer_that_is_no_reply_has_a_status(
    answer: bytes | None, status: Status, text: str
) -> None:
    async with channel_to(RawPeer([answer])) as channel:
        with pytest.raises(GRPCError) as caught:
            await EchoStub(channel).unary(Raw(b"a"))
    assert caught.value.status is status
    assert text in (caught.value.message or "")


@pytest.mark.parametrize(
    "answer",
    [
        REPLY + trailers(),
        PING + REPLY + trailers() + reset(0),
        headers({":status": "100"}) + REPLY + trailers(),
        OK + data(message(b"yes")[:3]) + data(message(b"yes")[3:]) + trailers(),
        REPLY + data(b"") + trailers("0", text="%%%"),
        reset(0, stream=99) + REPLY + trailers(),
        b"\x00\x00\x01\xee\x00\x00\x00\x00\x00?" + REPLY + trailers(),  # an unknown frame
    ],
)
async def test_odd_but_valid_answers_are_replies(answer: bytes) -> None:
    async with channel_to(RawPeer([answer])) as channel:
        assert await EchoStub(channel).unary(Raw(b"a")) == b"yes"


async def test_a_peer_that_dies_within_a_message_makes_the_call_unavailable() -> None:
    peer = RawPeer([OK + data(message(b"only a part", size=500))])
    async with channel_to(peer) as channel, trio.open_nursery() as nursery:

        async def die() -> None:
            await trio.testing.wait_all_tasks_blocked(0.01)
            await peer.streams[0].aclose()

        nursery.start_soon(die)
        with pytest.raises(GRPCError) as caught:
            await EchoStub(channel).unary(Raw(b"a"))
    assert caught.value.status is Status.UNAVAILABLE


@pytest.mark.parametrize("greeting", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x00" * 50])
async def test_a_peer_that_is_not_http2_is_unavailable(greeting: bytes) -> None:
    async with channel_to(RawPeer(greeting=greeting)) as channel:
        with pytest.raises(GRPCError) as caught:
            await EchoStub(channel).unary(Raw(b"a"))
    assert caught.value.status is Status.UNAVAILABLE
    assert "protocol" in (caught.value.message or "")


async def test_a_peer_that_goes_away_at_once_is_unavailable() -> None:
    peer = RawPeer(greeting=settings() + GoAwayFrame(0, 0, 2, b"busy").serialize())
    async with channel_to(peer) as channel:
        with pytest.raises(GRPCError) as caught:
            await EchoStub(channel).unary(Raw(b"a"))
    assert caught.value.status is Status.UNAVAILABLE
    assert caught.value.message == "the peer is going away with error code 2 busy"
    assert len(peer.dials) == 1


async def test_pings_are_answered() -> None:
    peer = RawPeer(greeting=settings() + PING)
    async with channel_to(peer) as channel, trio.open_nursery() as nursery:
        nursery.start_soon(EchoStub(channel).unary, Raw(b"a"))
        await trio.testing.wait_all_tasks_blocked()
        frames = await read_until(peer.streams[0], PingFrame)
        assert "ACK" in frames[-1].flags
        nursery.cancel_scope.cancel()


async def test_a_call_refused_unread_is_made_again() -> None:
    peer = RawPeer([reset(0x7)])
    async with channel_to(peer) as channel, trio.open_nursery() as nursery:
        replies: list[Raw] = []

        async def call() -> None:
            replies.append(await EchoStub(channel).unary(Raw(b"a")))

        nursery.start_soon(call)
        await trio.testing.wait_all_tasks_blocked(0.01)
        reply = headers(OK_HEADERS, stream=3) + data(message(b"yes"), stream=3)
        await peer.streams[0].send_all(reply + trailers(stream=3))
    assert replies == [b"yes"]


async def test_a_call_that_a_goaway_leaves_out_goes_to_the_next_connection() -> None:
    peer = RawPeer([GoAwayFrame(0, 0).serialize(), REPLY + trailers()])
    async with channel_to(peer) as channel:
        assert await EchoStub(channel).unary(Raw(b"a")) == b"yes"
    assert len(peer.dials) == 2


async def test_a_call_below_the_goaway_finishes_where_it_is() -> None:
    goaway = GoAwayFrame(0, 1, 0, b"bye").serialize()
    peer = RawPeer([OK + goaway + data(message(b"yes")) + trailers(), REPLY + trailers()])
    async with channel_to(peer) as channel:
        assert await EchoStub(channel).unary(Raw(b"a")) == b"yes"
        assert await EchoStub(channel).unary(Raw(b"a")) == b"yes"
        while await peer.streams[0].receive_some():
            pass  # the first connection was left as soon as it was empty
    assert len(peer.dials) == 2


# The serving side


async def ask(wire: bytes, frames_to: type = HeadersFrame) -> dict[bytes, bytes]:
    """Send a server raw bytes, and return the headers of its first answer."""
    async with trio.open_nursery() as nursery:
        near, far = trio.testing.memory_stream_pair()
        nursery.start_soon(Server([Echo()]).serve_stream, far)
        await near.send_all(PREFACE + settings() + wire)
        frames = await read_until(near, frames_to)
        nursery.cancel_scope.cancel()
    block = frames[-1]
    if not isinstance(block, HeadersFrame):
        return {}
    return dict(Decoder().decode(block.data, raw=True))


def request(**changes: str | None) -> bytes:
    fields: dict[str, str | None] = {
        ":method": "POST",
        ":scheme": "http",
        ":path": PATH + "unary",
        ":authority": "localhost",
        "te": "trailers",
        "content-type": "application/grpc",
    }
    fields |= {
        name.replace("_", ":", 1) if name[0] == "_" else name: value
        for name, value in changes.items()
    }
    return headers({name: value for name, value in fields.items() if value is not None})


@pytest.mark.parametrize(
    ("wire", "name", "value"),
    [
        (request(_method="GET"), b":status", b"405"),
        (request(**{"content-type": "text/plain"}), b":status", b"415"),
        (request(te=None), b":status", b"400"),
        (request(**{"grpc-timeout": "soon"}), b"grpc-status", b"13"),
        (request(_path="/no/such"), b"grpc-status", b"12"),
        (request(_path=None), b"grpc-status", b"12"),
        (request() + data(b"", end=True), b"grpc-status", b"13"),
        (request() + data(message(b"", size=2**31)), b"grpc-status", b"8"),
        (request() + data(message(b"a", flag=1)), b"grpc-status", b"12"),
        (request() + data(message(b"", size=9) + b"a", end=True), b"grpc-status", b"13"),
        (request(**{"grpc-timeout": "0n"}), b"grpc-status", b"4"),
    ],
)
async def test_a_request_that_is_none_is_answered_so(
    wire: bytes, name: bytes, value: bytes
) -> None:
    assert (await ask(wire))[name] == value


async def test_a_client_that_breaks_the_protocol_gets_a_goaway() -> None:
    await ask(data(b"x", stream=7), GoAwayFrame)


async def test_a_client_that_ignores_our_limit_on_streams_loses_its_connection() -> None:
    service = Echo()
    async with trio.open_nursery() as nursery:
        near, far = trio.testing.memory_stream_pair()
        nursery.start_soon(Server([service]).serve_stream, far)
        await near.send_all(PREFACE + settings())
        fields = {":method": "POST", ":path": PATH + "join", "te": "trailers"}
        fields["content-type"] = "application/grpc"
        for number in range(1000):
            await near.send_all(headers(fields, stream=2 * number + 1))
        await trio.testing.wait_all_tasks_blocked()
        assert service.active == 1000
        await near.send_all(headers(fields, stream=2001))
        await read_until(near, GoAwayFrame)
        await near.aclose()
        await trio.testing.wait_all_tasks_blocked()
        assert service.active == 0
        nursery.cancel_scope.cancel()


CHUNKS = st.lists(
    st.one_of(
        st.binary(max_size=60),
        st.sampled_from(
            [
                OK,
                REPLY,
                PING,
                GARBAGE,
                trailers(),
                reset(0),
                reset(7),
                settings(initial_window_size=0),
                settings(initial_window_size=2**31 - 1),
                settings(max_concurrent_streams=0),
                data(message(b"x"), end=True),
                headers(OK_HEADERS, stream=3),
                GoAwayFrame(0, 0, 1).serialize(),
                GoAwayFrame(0, 2**31 - 1, 0).serialize(),
                request(),
            ]
        ),
    ),
    max_size=8,
)


@given(CHUNKS)
def test_no_bytes_from_a_server_do_worse_than_end_the_call(chunks: list[bytes]) -> None:
    async def main() -> None:
        peer = RawPeer([b"".join(chunks)] * 5)
        async with channel_to(peer) as channel:
            with suppress(GRPCError):
                await EchoStub(channel).unary(Raw(b"a"), timeout=1)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@given(CHUNKS)
def test_no_bytes_from_a_client_do_worse_than_end_the_connection(chunks: list[bytes]) -> None:
    async def main() -> None:
        service = Echo()
        async with trio.open_nursery() as nursery:
            near, far = trio.testing.memory_stream_pair()
            nursery.start_soon(Server([service]).serve_stream, far)
            await near.send_all(PREFACE + settings() + b"".join(chunks))
            await trio.testing.wait_all_tasks_blocked()
            await near.aclose()
        assert service.active == 0

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
