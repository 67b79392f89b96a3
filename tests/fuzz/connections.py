"""Targets: what strangers, clients, containers and runtimes send on connections."""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, cast

import trio
from hypothesis import strategies as st
from trio.abc import HalfCloseableStream, ReceiveStream
from trio.testing import memory_stream_pair

from kubelet_trio.grpc import GRPCError, Server, open_channel
from kubelet_trio.grpc import RawMessage as Raw
from kubelet_trio.handlers import HandlerError
from kubelet_trio.handlers.http import _converse, _Progress
from kubelet_trio.handlers.http_action import HttpRequest
from kubelet_trio.server import HttpError, Limits, Request, Response, serve_connection
from kubelet_trio.server.streams.proxy import ask_backend, open_backend
from kubelet_trio.streaming import SpdyLink, spdy
from kubelet_trio.streaming.websocket import Tunnel, WebSocket
from tests.fuzz.mutate import edited, frames, texts
from tests.fuzz.target import Target, in_trio
from tests.grpc.echo import PATH, Echo, EchoStub
from tests.grpc.raw_peer import (
    OK_HEADERS,
    PING,
    PREFACE,
    data,
    headers,
    message,
    reset,
    settings,
    trailers,
)

_GONE = (trio.BrokenResourceError, trio.ClosedResourceError)


async def _say(stream: HalfCloseableStream, said: bytes) -> None:
    """Send everything, in two pieces, and nothing more after it."""
    with suppress(*_GONE):
        await stream.send_all(said[: len(said) // 2])
        await stream.send_all(said[len(said) // 2 :])
        await stream.send_eof()


async def _heard(stream: ReceiveStream) -> bytes:
    found = bytearray()
    with suppress(*_GONE):
        async for piece in stream:
            found += piece
    return bytes(found)


def _talk(said: bytes, serve: Callable[[HalfCloseableStream], Awaitable[None]]) -> bytes:
    """Let a peer say something to what serves the other end; return what it is answered."""

    async def main() -> bytes:
        ours, theirs = memory_stream_pair()
        answer = b""

        async def hear() -> None:
            nonlocal answer
            answer = await _heard(theirs)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(_say, theirs, said)
            nursery.start_soon(hear)
            await serve(ours)
            await ours.aclose()
        return answer

    return in_trio(main)


# HTTP


async def _echo(request: Request) -> Response:
    return Response(body=repr((request.path, request.arguments, len(request.body))).encode())


def _http_server(said: bytes) -> object:
    async def gate(request: Request) -> None:
        if "refused" in request.path:
            raise HttpError(403, "no")

    answer = _talk(said, lambda stream: serve_connection(stream, _echo, Limits(), gate=gate))
    assert not answer or answer.startswith(b"HTTP/1.1 ")
    return answer


_REQUESTS = [
    b"GET /pods?a=b%20c&d HTTP/1.1\r\nHost: h\r\n\r\n",
    b"POST /refused HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc",
    b"POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    b"GET //a/%2e%2e/%00 HTTP/1.0\r\n\r\n",
    b"PUT /y HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 0\r\n\r\n",
    b"GET http://other/z HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n",
]
_HTTP_TOKENS = (
    b"Content-Length: 5\r\n",
    b"Content-Length: -1\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: gzip\r\n",
    b"Host: other\r\n",
    b"\r\n\r\n",
    b"X: \xff\xfe\r\n",
    b" HTTP/1.1",
    b"/%zz",
    b"?" + b"&" * 200,
    b"#",
    b"fffffffff\r\n",
)


def _http_client(said: bytes) -> object:
    request = HttpRequest("http", "127.0.0.1", 80, "/health")

    async def main() -> object:
        ours, theirs = memory_stream_pair()
        failure: Exception | None = None
        answer = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_say, theirs, said)
            nursery.start_soon(_heard, theirs)
            try:
                answer = await _converse(cast("Any", ours), _Progress(request))
                if answer.location:
                    request.redirected(answer.location)
            except HandlerError as exc:  # not through the nursery: it would be a group
                failure = exc
            except trio.BrokenResourceError:
                pass  # `http_get` tells of it as of any connection that breaks
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure
        return answer

    return in_trio(main)


_ANSWERS = [
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nT: x\r\n\r\n",
    b"HTTP/1.1 302 Found\r\nLocation: /next?a=b\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 103 Early\r\n\r\nHTTP/1.1 204 No\r\n\r\n",
    b"HTTP/1.0 500 Oh\r\n\r\nto the end",
]
_ANSWER_TOKENS = (
    *_HTTP_TOKENS,
    b"HTTP/1.1 100 Continue\r\n\r\n",
    b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
    b"Location: http://[::1\r\n",
    b"Location: //127.0.0.1:99999/\r\n",
    b"Location: \xff\xfe\r\n",
    b"HTTP/1.1 999 \r\n",
)


def _backend(said: bytes) -> object:
    """Ask a runtime's streaming server, at the URL in the first line, to switch protocols."""
    url, _, answer = said.partition(b"\n")
    place = url.decode("utf-8", "replace")

    async def main() -> object:
        ours, theirs = memory_stream_pair()
        failure: Exception | None = None
        found: object = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_say, theirs, answer)
            nursery.start_soon(_heard, theirs)
            try:
                found = await ask_backend("POST", (("Upgrade", "SPDY/3.1"),), place, ours)
            except HttpError as exc:
                failure = exc
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure
        return found

    return in_trio(main)


def _no_backend(said: bytes) -> object:
    """Connect to where a URL points, on a host that has no network."""
    url = said.decode("utf-8", "replace")

    async def main() -> None:
        trio.socket.set_custom_socket_factory(_NoSockets())
        async with open_backend(f"http://127.0.0.1:1{url}"):
            raise AssertionError("there is no network")

    return trio.run(main)


class _NoSockets(trio.abc.SocketFactory):
    def socket(self, *_: object, **__: object) -> Any:
        raise ConnectionRefusedError("no network")


_SWITCHED = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: SPDY/3.1\r\n\r\nearly"

# SPDY


def _spdy(said: bytes) -> object:
    """Be a server of SPDY that reads what is offered, and echoes it."""

    async def serve(stream: HalfCloseableStream) -> None:
        link = SpdyLink(stream, is_client=False)

        async def read(offered: HalfCloseableStream) -> None:
            with suppress(*_GONE):
                while content := await offered.receive_some():
                    await offered.send_all(content)
                await offered.send_eof()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.run)
            async for offered in link.offered:
                nursery.start_soon(read, offered)

    return len(_talk(said, serve))


def _spdy_frames() -> list[bytes]:
    client = spdy.SpdyWire(is_client=True)
    opened = [client.open({"streamtype": name, "port": "80"}) for name in ("error", "data")]
    return [
        *(frame for _, frame in opened),
        spdy.data(1, b"hello"),
        spdy.data(3, b"bye", is_last=True),
        spdy.reset(1, spdy.ResetStatus.CANCEL),
        spdy.ping(1),
        spdy.go_away(),
        struct.pack(">HHI", 0x8003, 4, 4) + b"\0\0\0\0",  # SETTINGS
        struct.pack(">HHI", 0x8003, 9, 8) + b"\0\0\0\1\0\0\0\1",  # WINDOW_UPDATE
        struct.pack(">HHI", 0x8003, 1, 0xFFFFFF),
        struct.pack(">II", 1, 0xFFFFFF),
    ]


# WebSocket


def _web_socket(said: bytes) -> object:
    found: list[bytes] = []

    async def serve(stream: HalfCloseableStream) -> None:
        socket = WebSocket(stream, is_text=said.startswith(b"\x81"))

        async def take(content: bytes) -> None:
            found.append(content)
            await socket.send(content or b"\0")

        with suppress(*_GONE):
            await socket.deliver(_contained(take))
        await socket.close()

    _talk(said, serve)
    return found


def _contained(take: Callable[[bytes], Awaitable[None]]) -> Callable[[bytes], Awaitable[None]]:
    async def taken(content: bytes) -> None:
        with suppress(*_GONE):  # else they would come out in a group
            await take(content)

    return taken


def _tunnel(said: bytes) -> object:
    async def serve(stream: HalfCloseableStream) -> None:
        await _heard(Tunnel(WebSocket(stream)))

    return len(_talk(said, serve))


def _ws(opcode: int, content: bytes, *, fin: bool = True, mask: bytes = b"abcd") -> bytes:
    head = bytes([(0x80 if fin else 0) | opcode])
    size = len(content)
    if size < 126:
        head += bytes([0x80 | size])
    else:
        head += bytes([0x80 | 126]) + struct.pack(">H", size)
    masked = bytes(byte ^ mask[at % 4] for at, byte in enumerate(content))
    return head + mask + masked


_WS_FRAMES = [
    _ws(2, b"\0hello"),
    _ws(2, b"\x04" + b'{"Width":80,"Height":24}'),
    _ws(2, b"\xff\0"),
    _ws(1, b"0aGVsbG8="),
    _ws(1, b"4", fin=False),
    _ws(0, b"e30=", fin=True),
    _ws(0, b"", fin=False),
    _ws(8, struct.pack(">H", 1000) + b"bye"),
    _ws(8, b"\x03"),
    _ws(8, struct.pack(">H", 5) + b"\xff"),
    _ws(9, b"ping"),
    _ws(10, b""),
    _ws(1, b"\xff\xfe"),
    _ws(2, b"x" * 200),
    bytes([0x82, 0xFF]) + struct.pack(">Q", 1 << 63) + b"abcd",
    bytes([0x82, 0xFF]) + struct.pack(">Q", 1 << 40) + b"abcd",
    b"\x82\x01x",  # not masked
]

# gRPC


def _grpc_request() -> bytes:
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": PATH + "unary",
        ":authority": "localhost",
        "te": "trailers",
        "content-type": "application/grpc",
    }
    return headers(fields) + data(message(b"hello"), end=True)


def _grpc_server(said: bytes) -> object:
    return len(_talk(said, Server([Echo()]).serve_stream))


def _grpc_client(said: bytes) -> object:
    async def main() -> object:
        failure: GRPCError | None = None
        answer = None
        async with trio.open_nursery() as nursery:

            async def dial() -> trio.abc.Stream:
                await trio.lowlevel.checkpoint()
                ours, theirs = memory_stream_pair()
                nursery.start_soon(_heard, theirs)
                nursery.start_soon(greet, theirs)
                return ours

            async def greet(theirs: HalfCloseableStream) -> None:
                await theirs.send_all(settings())
                await trio.sleep(1)  # by now it has asked
                await _say(theirs, said)

            async with open_channel(dial) as channel:
                try:
                    answer = await EchoStub(channel).unary(Raw(b"a"), timeout=5)
                except GRPCError as exc:
                    failure = exc
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure
        return answer

    return in_trio(main)


_H2_ODD = [
    PING,
    reset(0x7),
    reset(0x8),
    settings(initial_window_size=0),
    settings(initial_window_size=2**31 - 1),
    settings(max_concurrent_streams=0),
    b"\x00\x00\x04\x08\x00\x00\x00\x00\x00\x00\x00\x00\x00",  # WINDOW_UPDATE by 0
    b"\x00\x00\x04\x08\x00\x00\x00\x00\x00\x7f\xff\xff\xff",
    b"\x00\x00\x08\x07\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02",  # GOAWAY
    b"\x00\x00\x05\x02\x00\x00\x00\x00\x01\x00\x00\x00\x01\xff",  # PRIORITY of itself
    b"\x00\x00\x01\x09\x04\x00\x00\x00\x01\x82",  # CONTINUATION of nothing
    b"\xff\xff\xff\x00\x00\x00\x00\x00\x01",  # 16 MiB of data, it says
    data(message(b"", size=2**31)),
    data(message(b"x", flag=1)),
    headers({"grpc-timeout": "99999999H", ":path": "/", ":method": "POST"}, stream=3),
    headers({"grpc-status": "999", "grpc-message": "%zz"}, end=True),
]
_GRPC_REPLY = headers(OK_HEADERS) + data(message(b"yes")) + trailers()


def _of(
    name: str,
    run: Callable[[bytes], object],
    examples: Sequence[bytes],
    strategy: st.SearchStrategy[bytes],
    *errors: type[Exception],
    most: int = 64 * 1024,
) -> Target:
    return Target(name, run, examples, strategy, errors, most=most)


_SPDY = _spdy_frames()

TARGETS = [
    _of(
        "HTTP of a stranger",
        _http_server,
        _REQUESTS,
        st.lists(edited(st.sampled_from(_REQUESTS), _HTTP_TOKENS), min_size=1, max_size=3).map(
            b"".join
        ),
    ),
    _of(
        "HTTP of a container",
        _http_client,
        _ANSWERS,
        edited(st.sampled_from(_ANSWERS), _ANSWER_TOKENS),
        HandlerError,
    ),
    _of(
        "HTTP of a runtime's streaming server",
        _backend,
        [b"http://127.0.0.1:9/exec/token\n" + _SWITCHED],
        edited(
            st.sampled_from(
                [b"http://127.0.0.1:9/exec/token\n" + answer for answer in (_SWITCHED, *_ANSWERS)]
            ),
            _ANSWER_TOKENS,
        ),
        HttpError,
    ),
    _of(
        "URL of a runtime's streaming server",
        _no_backend,
        [],
        texts([b"/exec/token", b"9/attach?x=y"], b"[", b"]", b"@127.0.0.1:1", b":"),
        HttpError,
    ),
    _of("SPDY", _spdy, [b"".join(_SPDY[:4])], frames(_SPDY, _SPDY[0] + _SPDY[1])),
    _of("WebSocket", _web_socket, [b"".join(_WS_FRAMES[:3])], frames(_WS_FRAMES)),
    _of("tunnel in a WebSocket", _tunnel, [b"".join(_WS_FRAMES[:3])], frames(_WS_FRAMES)),
    _of(
        "gRPC of a client",
        _grpc_server,
        [PREFACE + settings() + _grpc_request()],
        frames([_grpc_request(), settings(), *_H2_ODD], PREFACE + settings()),
    ),
    _of(
        "gRPC of a server",
        _grpc_client,
        [_GRPC_REPLY],
        frames([_GRPC_REPLY, headers(OK_HEADERS), trailers("5"), *_H2_ODD]),
        GRPCError,
    ),
]
