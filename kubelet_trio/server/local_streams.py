"""Exec, attach and port-forward of a runtime without a streaming server: served here.

Loaded with the first such request. What a client may speak is what the runtimes' own servers
speak, and `v5.channel.k8s.io` beside.

Source: Handshake and negotiateProtocol in k8s.io/streaming (httpstream), wsstream.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from http import HTTPStatus

import trio

from kubelet_trio import streaming
from kubelet_trio.cri import CommandStreams, LocalStreams, StreamOptions
from kubelet_trio.model import SandboxId
from kubelet_trio.server.http import Headers, HttpError, Request, Response, Upgrade
from kubelet_trio.server.idle import watched
from kubelet_trio.server.proxy import is_websocket
from kubelet_trio.streaming import SpdyLink, WebSocket

_PROTOCOL_VERSION = "X-Stream-Protocol-Version"
_SPDY = "SPDY/3.1"

Opening = Callable[[], AbstractAsyncContextManager[CommandStreams]]


def local_command(
    request: Request, opening: Opening, options: StreamOptions, idle: float, *, is_attach: bool
) -> Response:
    """Return the answer that switches to a command's streams. Raises `HttpError`."""
    serve = partial(streaming.serve_command, options=options, is_attach=is_attach)
    if is_websocket(request):
        protocol = _websocket_protocol(request, streaming.COMMAND_WEBSOCKET)
        answer = websocket_answer(request, protocol)

        async def talk_websocket(connection: Upgrade) -> None:
            async with _websocket(connection, answer, protocol, idle) as socket:
                client = streaming.WebSocketClient(socket, protocol, options)
                await client.greet()
                await serve(client, opening())

        return Response(upgrade=talk_websocket)
    protocol = _spdy_protocol(request, streaming.COMMAND_SPDY)

    async def talk(connection: Upgrade) -> None:
        async with _spdy(connection, protocol, idle) as link:
            client = streaming.SpdyClient(link, protocol, options)
            if await client.wait_streams():
                await serve(client, opening())

    return Response(upgrade=talk)


def local_forward(
    request: Request,
    streams: LocalStreams,
    sandbox_id: SandboxId,
    ports: tuple[int, ...],
    idle: float,
) -> Response:
    """Return the answer that switches to connections into a pod. Raises `HttpError`."""
    dial = partial(streams.open_port, sandbox_id)
    if not is_websocket(request):
        protocol = _spdy_protocol(request, streaming.FORWARD_SPDY)

        async def talk(connection: Upgrade) -> None:
            async with _spdy(connection, protocol, idle) as link:
                await streaming.forward_spdy(link, dial, sandbox_id)

        return Response(upgrade=talk)
    protocol = _websocket_protocol(request, streaming.FORWARD_WEBSOCKET)
    answer = websocket_answer(request, protocol)

    async def talk_websocket(connection: Upgrade) -> None:
        async with _websocket(connection, answer, protocol, idle) as socket:
            if protocol != streaming.TUNNEL:
                await streaming.forward_websocket(socket, dial, ports, sandbox_id)
                return
            async with running(SpdyLink(streaming.Tunnel(socket), is_client=False)) as link:
                await streaming.forward_spdy(link, dial, sandbox_id)

    return Response(upgrade=talk_websocket)


def _websocket_protocol(request: Request, spoken: tuple[str, ...]) -> str:
    """Return the protocol that both speak, empty where the client names none."""
    offered = streaming.offered_protocols(request.headers)
    found = streaming.chosen(offered, spoken) if offered else ""
    if found is None:
        message = f"unable to upgrade: none of the protocols {list(offered)} is {list(spoken)}"
        raise HttpError(HTTPStatus.BAD_REQUEST, message, end="")
    return found


def websocket_answer(request: Request, protocol: str) -> Headers:
    """Return the headers that take a WebSocket. Raises `HttpError` 400."""
    try:
        return streaming.handshake(request.headers, protocol)
    except ValueError as exc:
        raise HttpError(HTTPStatus.BAD_REQUEST, f"unable to upgrade: {exc}", end="") from exc


def _spdy_protocol(request: Request, spoken: tuple[str, ...]) -> str:
    if not request.headers.get("upgrade", "").lower().startswith("spdy/3.1"):
        message = f"unable to upgrade: {request.headers.get('upgrade')} is neither {_SPDY} nor "
        raise HttpError(HTTPStatus.BAD_REQUEST, f"{message}websocket", end="")
    named = [v for n, v in request.raw_headers if n.lower() == _PROTOCOL_VERSION.lower()]
    wanted = [word.strip() for value in named for word in value.split(",")]
    if not wanted:
        message = f"unable to upgrade: {_PROTOCOL_VERSION} is required"
        raise HttpError(HTTPStatus.BAD_REQUEST, message, end="")
    found = streaming.chosen(wanted, spoken)
    if found is None:
        message = (
            "unable to upgrade: unable to negotiate protocol: "
            f"client supports {wanted}, server accepts {list(spoken)}"
        )
        accepted = tuple(("X-Accepted-Stream-Protocol-Versions", name) for name in spoken)
        raise HttpError(HTTPStatus.FORBIDDEN, message, accepted, end="")
    return found


@asynccontextmanager
async def _websocket(
    connection: Upgrade, answer: Headers, protocol: str, idle: float
) -> AsyncIterator[WebSocket]:
    stream, early = await connection.accept(answer)
    with watched(stream, idle) as noted:
        yield WebSocket(noted, early, is_text=streaming.is_base64(protocol), beneath=stream)


@asynccontextmanager
async def _spdy(connection: Upgrade, protocol: str, idle: float) -> AsyncIterator[SpdyLink]:
    answer = (("Connection", "Upgrade"), ("Upgrade", _SPDY), (_PROTOCOL_VERSION, protocol))
    stream, early = await connection.accept(answer)
    with watched(stream, idle) as noted:
        link = SpdyLink(noted, is_client=False, early=early, beneath=stream)
        async with running(link):
            yield link


@asynccontextmanager
async def running(link: SpdyLink) -> AsyncIterator[SpdyLink]:
    """Read a connection as long as the block lasts."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.run)
        yield link
        nursery.cancel_scope.cancel()
