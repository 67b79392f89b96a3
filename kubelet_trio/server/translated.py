"""WebSocket clients of protocols that only a SPDY server can serve, before such a server.

Loaded with the first of them. Commands of `v5.channel.k8s.io` are translated; connections into a
pod come as SPDY in a WebSocket, and leave as they are.

Source: GetExec, GetAttach and GetPortForward under ExtendWebSocketsToKubelet in
pkg/kubelet/server/server.go.
"""

from __future__ import annotations

from kubelet_trio import streaming
from kubelet_trio.cri import StreamOptions
from kubelet_trio.server.http import Request, Upgrade
from kubelet_trio.server.idle import watched
from kubelet_trio.server.local_streams import running, websocket_answer
from kubelet_trio.server.proxy import ask_backend, open_backend, pump_both
from kubelet_trio.streaming import SpdyLink, Tunnel, WebSocket


def is_translated(request: Request) -> bool:
    """Whether a WebSocket client speaks what runtimes do not, of commands."""
    return streaming.WEBSOCKET_V5 in streaming.offered_protocols(request.headers)


def is_tunnel(request: Request) -> bool:
    """Whether there is SPDY in the WebSocket."""
    return streaming.TUNNEL in streaming.offered_protocols(request.headers)


async def translate_upgrade(
    request: Request, url: str, options: StreamOptions, idle_timeout: float, connection: Upgrade
) -> None:
    """Serve a command's client from a runtime's SPDY server. Raises `HttpError`."""
    answer = websocket_answer(request, streaming.WEBSOCKET_V5)
    async with open_backend(url) as stream:
        backend = await ask_backend("POST", _spdy_headers(streaming.COMMAND_SPDY), url, stream)
        client, early = await connection.accept(answer)
        with watched(client, idle_timeout) as noted:
            link = SpdyLink(stream, is_client=True, early=backend.early)
            async with running(link):
                await streaming.translate_command(
                    WebSocket(noted, early, beneath=client), link, options
                )


async def tunnel_upgrade(
    request: Request, url: str, idle_timeout: float, connection: Upgrade
) -> None:
    """Hand the SPDY in a WebSocket through to a runtime. Raises `HttpError`."""
    answer = websocket_answer(request, streaming.TUNNEL)
    async with open_backend(url) as stream:
        backend = await ask_backend("POST", _spdy_headers(streaming.FORWARD_SPDY), url, stream)
        client, early = await connection.accept(answer)
        tunnel = Tunnel(WebSocket(client, early))
        if backend.early:
            await tunnel.send_all(backend.early)
        await pump_both(tunnel, stream, idle_timeout)
        await tunnel.aclose()


def _spdy_headers(protocols: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    offered = tuple(("X-Stream-Protocol-Version", protocol) for protocol in protocols)
    return (("Connection", "Upgrade"), ("Upgrade", "SPDY/3.1"), *offered)
