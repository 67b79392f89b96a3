"""WebSocket and SPDY clients that the agent serves itself.

Two cases, both loaded with the first such request:

- A runtime without a streaming server (`local_command`, `local_forward`). Clients may use the
  protocols of the runtimes' own servers, and `v5.channel.k8s.io`.
- WebSocket protocols that runtimes do not support (`translate_upgrade`, `tunnel_upgrade`): the
  runtime's server is asked over SPDY. Commands of `v5.channel.k8s.io` are translated; of
  port-forwards in `SPDY/3.1+portforward.k8s.io` only the WebSocket framing is removed.

Source: Handshake and negotiateProtocol in k8s.io/streaming (httpstream), wsstream; GetExec,
GetAttach and GetPortForward under ExtendWebSocketsToKubelet in pkg/kubelet/server/server.go.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from functools import partial
from http import HTTPStatus

import trio
from trio.abc import HalfCloseableStream

from kubelet_trio import streaming
from kubelet_trio.cri import CommandStreams, LocalStreams, StreamOptions
from kubelet_trio.model import SandboxId, get_logger
from kubelet_trio.server.errors import restful_error
from kubelet_trio.server.http.types import Headers, Request, Response, Upgrade
from kubelet_trio.server.streams.proxy import (
    Activity,
    ask_backend,
    is_websocket,
    open_backend,
    pump_both,
)
from kubelet_trio.streaming import SpdyLink, Tunnel, WebSocket

log = get_logger()

_PROTOCOL_VERSION = "X-Stream-Protocol-Version"
_SPDY = "SPDY/3.1"

Opening = Callable[[], AbstractAsyncContextManager[CommandStreams]]


def local_command(
    request: Request, opening: Opening, options: StreamOptions, idle: float, *, is_attach: bool
) -> Response:
    """Return the response that switches to a command's streams. Raises `HttpError`."""
    serve = partial(streaming.serve_command, options=options, is_attach=is_attach)
    if is_websocket(request):
        protocol = _websocket_protocol(request, streaming.COMMAND_WEBSOCKET)
        answer = _websocket_answer(request, protocol)

        async def serve_websocket(connection: Upgrade) -> None:
            async with _websocket(connection, answer, protocol, idle) as socket:
                client = streaming.WebSocketClient(socket, protocol, options)
                await client.greet()
                await serve(client, opening())

        return Response(upgrade=serve_websocket)
    protocol = _spdy_protocol(request, streaming.COMMAND_SPDY)

    async def serve_spdy(connection: Upgrade) -> None:
        async with _spdy(connection, protocol, idle) as link:
            client = streaming.SpdyClient(link, protocol, options)
            if await client.wait_streams():
                await serve(client, opening())

    return Response(upgrade=serve_spdy)


def refused_command(request: Request, message: str) -> Response:
    """Return the response that tells a WebSocket client of `v5` why its command cannot run.

    Browsers show scripts nothing of an upgrade that is refused. Raises `HttpError` 400.
    """
    answer = _websocket_answer(request, streaming.WEBSOCKET_V5)

    async def serve(connection: Upgrade) -> None:
        stream, early = await connection.accept(answer)
        options = StreamOptions(stdin=False, stdout=True, stderr=False, tty=True)
        socket = WebSocket(stream, early)
        client = streaming.WebSocketClient(socket, streaming.WEBSOCKET_V5, options)
        await client.finish(streaming.failed(message))

    return Response(upgrade=serve)


def local_forward(
    request: Request,
    streams: LocalStreams,
    sandbox_id: SandboxId,
    ports: tuple[int, ...],
    idle: float,
) -> Response:
    """Return the response that switches to connections into a pod. Raises `HttpError`."""
    dial = partial(streams.open_port, sandbox_id)
    if not is_websocket(request):
        protocol = _spdy_protocol(request, streaming.FORWARD_SPDY)

        async def serve_spdy(connection: Upgrade) -> None:
            async with _spdy(connection, protocol, idle) as link:
                await streaming.forward_spdy(link, dial, sandbox_id)

        return Response(upgrade=serve_spdy)
    protocol = _websocket_protocol(request, streaming.FORWARD_WEBSOCKET)
    answer = _websocket_answer(request, protocol)

    async def serve_websocket(connection: Upgrade) -> None:
        async with _websocket(connection, answer, protocol, idle) as socket:
            if protocol != streaming.TUNNEL:
                await streaming.forward_websocket(socket, dial, ports, sandbox_id)
                return
            async with _running(SpdyLink(Tunnel(socket), is_client=False)) as link:
                await streaming.forward_spdy(link, dial, sandbox_id)

    return Response(upgrade=serve_websocket)


def _websocket_protocol(request: Request, supported: tuple[str, ...]) -> str:
    """Return the negotiated protocol, empty if the client names none. Raises `HttpError` 400."""
    offered = streaming.offered_protocols(request.headers)
    found = streaming.chosen(offered, supported) if offered else ""
    if found is None:
        message = f"unable to upgrade: none of the protocols {list(offered)} is {list(supported)}"
        raise restful_error(HTTPStatus.BAD_REQUEST, message)
    return found


def _websocket_answer(request: Request, protocol: str) -> Headers:
    """Return the headers that accept a WebSocket. Raises `HttpError` 400."""
    try:
        return streaming.handshake(request.headers, protocol)
    except ValueError as exc:
        raise restful_error(HTTPStatus.BAD_REQUEST, f"unable to upgrade: {exc}") from exc


def _spdy_protocol(request: Request, supported: tuple[str, ...]) -> str:
    """Return the negotiated protocol. Raises `HttpError` 400 or 403."""
    if not request.headers.get("upgrade", "").lower().startswith("spdy/3.1"):
        message = f"unable to upgrade: {request.headers.get('upgrade')} is neither {_SPDY} nor "
        raise restful_error(HTTPStatus.BAD_REQUEST, f"{message}websocket")
    named = [v for n, v in request.raw_headers if n.lower() == _PROTOCOL_VERSION.lower()]
    offered = [word.strip() for value in named for word in value.split(",")]
    if not offered:
        message = f"unable to upgrade: {_PROTOCOL_VERSION} is required"
        raise restful_error(HTTPStatus.BAD_REQUEST, message)
    found = streaming.chosen(offered, supported)
    if found is None:
        message = (
            "unable to upgrade: unable to negotiate protocol: "
            f"client supports {offered}, server accepts {list(supported)}"
        )
        accepted = tuple(("X-Accepted-Stream-Protocol-Versions", name) for name in supported)
        raise restful_error(HTTPStatus.FORBIDDEN, message, accepted)
    return found


@asynccontextmanager
async def _websocket(
    connection: Upgrade, answer: Headers, protocol: str, idle: float
) -> AsyncIterator[WebSocket]:
    stream, early = await connection.accept(answer)
    with ending_when_idle(stream, idle) as observed:
        yield WebSocket(observed, early, is_text=streaming.is_base64(protocol), beneath=stream)


@asynccontextmanager
async def _spdy(connection: Upgrade, protocol: str, idle: float) -> AsyncIterator[SpdyLink]:
    answer = (("Connection", "Upgrade"), ("Upgrade", _SPDY), (_PROTOCOL_VERSION, protocol))
    stream, early = await connection.accept(answer)
    with ending_when_idle(stream, idle) as observed:
        link = SpdyLink(observed, is_client=False, early=early, beneath=stream)
        async with _running(link):
            yield link


@asynccontextmanager
async def _running(link: SpdyLink) -> AsyncIterator[SpdyLink]:
    """Run a SPDY connection for the duration of the block."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.run)
        yield link
        # `run` reads frames until the peer closes; the block decides when we are done.
        nursery.cancel_scope.cancel()


def is_translated(request: Request) -> bool:
    """Return whether a client of a command offers the WebSocket protocol that runtimes lack."""
    return streaming.WEBSOCKET_V5 in streaming.offered_protocols(request.headers)


def is_tunnel(request: Request) -> bool:
    """Return whether a client offers SPDY in a WebSocket."""
    return streaming.TUNNEL in streaming.offered_protocols(request.headers)


async def translate_upgrade(
    request: Request,
    url: str,
    options: StreamOptions,
    idle_timeout: float,
    connection: Upgrade,
    *,
    hangs_up: bool = False,
) -> None:
    """Translate between a command's WebSocket client and a SPDY server. Raises `HttpError`.

    `hangs_up`: see `translate_command`.
    """
    answer = _websocket_answer(request, streaming.WEBSOCKET_V5)
    async with open_backend(url) as stream:
        # Only the protocol that tells the outcome as `v5` does; all runtimes speak it.
        backend = await ask_backend("POST", _spdy_headers(streaming.COMMAND_SPDY[:1]), url, stream)
        client, early = await connection.accept(answer)
        with ending_when_idle(client, idle_timeout) as observed:
            link = SpdyLink(stream, is_client=True, early=backend.early)
            socket = WebSocket(observed, early, beneath=client)
            await streaming.translate_command(socket, link, options, hangs_up=hangs_up)


async def tunnel_upgrade(
    request: Request, url: str, idle_timeout: float, connection: Upgrade
) -> None:
    """Proxy the SPDY in a WebSocket to a runtime's SPDY server. Raises `HttpError`."""
    answer = _websocket_answer(request, streaming.TUNNEL)
    async with open_backend(url) as stream:
        backend = await ask_backend("POST", _spdy_headers(streaming.FORWARD_SPDY), url, stream)
        client, early = await connection.accept(answer)
        tunnel = Tunnel(WebSocket(client, early))
        if backend.early:
            await tunnel.send_all(backend.early)
        await pump_both(tunnel, stream, idle_timeout)
        # Sends the WebSocket's close frame, which `pump_both` knows nothing of.
        await tunnel.aclose()


def _spdy_headers(protocols: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    offered = tuple(("X-Stream-Protocol-Version", protocol) for protocol in protocols)
    return (("Connection", "Upgrade"), ("Upgrade", "SPDY/3.1"), *offered)


@contextmanager
def ending_when_idle(stream: HalfCloseableStream, idle: float) -> Iterator[HalfCloseableStream]:
    """Cancel the block when neither side has sent a byte for `idle` seconds; 0 is no limit.

    Yields the stream to use in place of `stream`.
    """
    with trio.CancelScope() as scope:
        yield _ObservedStream(stream, Activity(scope, idle))
    if scope.cancelled_caught:
        log.info("stream.idle", seconds=idle)


class _ObservedStream(HalfCloseableStream):
    """Delegates to another stream, and notes each byte."""

    def __init__(self, stream: HalfCloseableStream, activity: Activity) -> None:
        self._stream, self._note_activity = stream, activity.note
        self._send_parts = streaming.sending_parts(stream)

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        data = await self._stream.receive_some(max_bytes)
        self._note_activity()
        return data

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._stream.send_all(data)
        self._note_activity()

    async def send_parts(self, parts: Iterable[streaming.Content]) -> None:
        await self._send_parts(parts)
        self._note_activity()

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def aclose(self) -> None:
        await self._stream.aclose()
