"""Port-forward: connections over SPDY streams, or one per port over a WebSocket.

With SPDY a client opens two streams for each connection, `data` and `error`, with the same port
and request id. In a WebSocket, channel 2n is the data of the nth port in the URL and 2n+1 its
errors; the first message on each is the port in two bytes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial

import trio
from trio.abc import HalfCloseableStream, ReceiveStream

from kubelet_trio.cri import RuntimeCallError
from kubelet_trio.model import get_logger
from kubelet_trio.streaming.backpressure import PEER_GONE
from kubelet_trio.streaming.spdy_link import SpdyLink, SpdyStream
from kubelet_trio.streaming.websocket import WebSocket

log = get_logger()

Dial = Callable[[int], Awaitable[HalfCloseableStream]]  # raises OSError, RuntimeCallError
Send = Callable[[bytes], Awaitable[None]]

_PIECE = 64 * 1024  # bytes
_PAIR_LIMIT = 30.0  # s for a client to open the second stream of a connection
_BUFFERED = 16  # messages of one channel that wait for its connection
_REFUSED = (OSError, RuntimeCallError)


async def forward_spdy(link: SpdyLink, dial: Dial, pod: str) -> None:
    """Serve a client's connections until it disconnects; `pod` is the name for errors."""
    waiting: dict[str, SpdyStream] = {}  # by request id: the other stream is still missing
    async with trio.open_nursery() as nursery:
        async for stream in link.offered:
            if stream.was_reset:
                continue  # the client has reset it already
            if (port := _port(stream)) is None:
                await stream.aclose()
                continue
            request = _request_of(stream)
            other = waiting.pop(request, None)
            if other is None:
                waiting[request] = stream
                nursery.start_soon(_expire, waiting, request, stream)
            # Two streams of one kind: refuse the second, and keep waiting for the other kind.
            elif _kind(other) == _kind(stream):
                await stream.aclose()
                waiting[request] = other
            else:
                data, error = sorted((other, stream), key=_kind)  # "data" sorts before "error"
                nursery.start_soon(_forward_pair, data, error, partial(dial, port), pod, port)
        nursery.cancel_scope.cancel()


def _kind(stream: SpdyStream) -> str:
    return stream.headers.get("streamtype", "")


def _port(stream: SpdyStream) -> int | None:
    """Return the port of a stream; None if its headers are invalid."""
    text = stream.headers.get("port", "")
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 6 else 0
    return number if 0 < number < 65536 and _kind(stream) in ("data", "error") else None


def _request_of(stream: SpdyStream) -> str:
    """Return the request id of a stream, which both streams of a connection share."""
    named = stream.headers.get("requestid")
    if named is not None:
        return named
    # Old clients send no request id, and open the error stream just before the data stream
    # (requestID in portforward/httpstream.go). A client's ids are odd: the next is 2 higher.
    return str(stream.stream_id - 2 if _kind(stream) == "data" else stream.stream_id)


async def _expire(waiting: dict[str, SpdyStream], request: str, stream: SpdyStream) -> None:
    await trio.sleep(_PAIR_LIMIT)
    if waiting.get(request) is stream:
        del waiting[request]
        await stream.aclose()


async def _forward_pair(
    data: SpdyStream,
    error: SpdyStream,
    dial: Callable[[], Awaitable[HalfCloseableStream]],
    pod: str,
    port: int,
) -> None:
    with suppress(*PEER_GONE):
        try:
            server = await dial()
        except _REFUSED as exc:
            await error.send_all(refusal(port, pod, exc))
        else:
            await join(data, data.send_all, server)
        await data.send_eof()
        await error.send_eof()
        while await data.receive_some():
            pass  # discard it: an unread stream would block the connection's other streams


def refusal(port: int, pod: str, exc: Exception) -> bytes:
    """Return the error message to a client whose connection failed."""
    log.info("forward.refused", port=port, error=str(exc))
    return f"error forwarding port {port} to pod {pod}, uid : {exc}".encode()


async def join(source: ReceiveStream, send: Send, server: HalfCloseableStream) -> None:
    """Copy between a client and a server until the server closes its side."""

    async def upwards() -> None:
        with suppress(*PEER_GONE):
            while content := await source.receive_some(_PIECE):
                await server.send_all(content)
            await server.send_eof()

    # The server's end ends the connection. The client's end is only passed on: it may half-close
    # and still read the answer.
    async with server, trio.open_nursery() as nursery:
        nursery.start_soon(upwards)
        with suppress(trio.BrokenResourceError):
            while content := await server.receive_some(_PIECE):
                await send(bytes(content))
        nursery.cancel_scope.cancel()


async def forward_websocket(socket: WebSocket, dial: Dial, ports: Sequence[int], pod: str) -> None:
    """Serve one connection to each port, until all have ended or the client disconnects."""
    pairs = [trio.open_memory_channel[bytes](_BUFFERED) for _ in ports]
    async with trio.open_nursery() as clients:
        clients.start_soon(_listen, socket, [feed for feed, _ in pairs], clients.cancel_scope)
        async with trio.open_nursery() as connections:
            for index, (port, (_, source)) in enumerate(zip(ports, pairs, strict=True)):
                # Little-endian, unlike network order (handleWebSocketStreams).
                named = port.to_bytes(2, "little")
                for channel in (2 * index, 2 * index + 1):
                    await socket.send(bytes([channel]) + named)
                connections.start_soon(
                    _forward_channel, socket, index, _Feed(source), partial(dial, port), pod, port
                )
        clients.cancel_scope.cancel()
    await socket.close()


async def _listen(
    socket: WebSocket, feeds: Sequence[trio.MemorySendChannel[bytes]], scope: trio.CancelScope
) -> None:
    while (message := await socket.receive()) is not None:
        # Error channels (odd) are only for the client, and an empty message is no data.
        if len(message) < 2 or message[0] % 2 or message[0] // 2 >= len(feeds):
            continue
        with suppress(*PEER_GONE):  # that connection has ended
            await feeds[message[0] // 2].send(message[1:])
    scope.cancel()


async def _forward_channel(
    socket: WebSocket,
    index: int,
    source: _Feed,
    dial: Callable[[], Awaitable[HalfCloseableStream]],
    pod: str,
    port: int,
) -> None:
    async def send(content: bytes) -> None:
        await socket.send(bytes([2 * index]) + content)

    async with source:
        try:
            server = await dial()
        except _REFUSED as exc:
            await socket.send(bytes([2 * index + 1]) + refusal(port, pod, exc))
        else:
            await join(source, send, server)


class _Feed(ReceiveStream):
    """The messages of one channel of a WebSocket, as a stream."""

    def __init__(self, source: trio.MemoryReceiveChannel[bytes]) -> None:
        self._source = source

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        try:
            return await self._source.receive()
        except trio.EndOfChannel:
            return b""

    async def aclose(self) -> None:
        self._source.close()
        await trio.lowlevel.checkpoint()
