"""HTTP servers: one task for each connection, in a nursery of the server's own."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial

import trio
from structlog.contextvars import bind_contextvars
from trio.abc import HalfCloseableStream, Listener

from kubelet_trio.model import get_logger
from kubelet_trio.server.http.seats import Seat, Seats
from kubelet_trio.server.http.types import (
    DEFAULT_LIMITS,
    ClientPeer,
    Gate,
    Handler,
    Limits,
    Observe,
    observe_nothing,
)
from kubelet_trio.server.http.wire import DISCONNECTED, serve_connection
from kubelet_trio.supervision import run_contained

log = get_logger()

Secure = Callable[[trio.SocketStream], Awaitable[tuple[HalfCloseableStream, ClientPeer]]]


async def serve_http(
    handler: Handler,
    listeners: Sequence[Listener[trio.SocketStream]],
    limits: Limits = DEFAULT_LIMITS,
    *,
    secure: Secure | None = None,
    gate: Gate | None = None,
    observe: Observe = observe_nothing,
    within: Observe = observe_nothing,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled, then close the listeners.

    A bug in a handler is logged and ends its connection; the other connections go on.

    Args:
        handler: answers the requests.
        listeners: closed at the end.
        limits: for clients.
        secure: does the TLS handshake, in the task of the connection.
        gate: authenticates and authorizes requests before their bodies are read.
        observe: called for each well-formed request, refused ones included.
        within: called for each request that the gate has let in.
    """
    # Without a gate no client becomes known, so one busy address may use all connections.
    seats = Seats(limits.connections, limits.per_source if gate else limits.connections)

    async def serve_socket(stream: trio.SocketStream, seat: Seat) -> None:
        # Closes the socket even if the handshake or `serve_connection` is cancelled.
        async with stream:
            secured = await _secured(secure, stream, seat.source, limits.secure_seconds)
            if secured is not None:
                served, peer = secured
                await serve_connection(
                    *(served, handler, limits, peer, observe), gate=gate, seat=seat, within=within
                )

    async def serve_one(stream: trio.SocketStream) -> None:
        address = _address(stream)
        bind_contextvars(client=address)  # a connection has a task of its own
        seat = seats.take(address)
        if seat is None:
            await _refuse(stream)
            return
        try:
            # The scope ends only this connection, to make room for a new one.
            with seat.scope:
                failure = await run_contained(serve_socket, stream, seat)
                if failure is not None:
                    log.error("http.connection_failed", exc_info=failure)
        finally:
            seats.leave(seat)

    async with trio.open_nursery() as connections:
        # It survives a lack of descriptors (EMFILE): it logs, waits and accepts again.
        accept = partial(trio.serve_listeners, handler_nursery=connections)
        await connections.start(accept, serve_one, list(listeners))
        task_status.started()


async def _secured(
    secure: Secure | None, stream: trio.SocketStream, address: str, seconds: float
) -> tuple[HalfCloseableStream, ClientPeer] | None:
    """Do the TLS handshake, if any; return None if it fails or takes too long."""
    if secure is None:
        return stream, ClientPeer(address)
    with trio.move_on_after(seconds), contextlib.suppress(*DISCONNECTED):
        secured, peer = await secure(stream)
        return secured, replace(peer, address=address)  # TLS does not know the address
    return None


def _address(stream: trio.SocketStream) -> str:
    try:
        name = stream.socket.getpeername()
    except OSError:
        return ""  # disconnected already
    return str(name[0]) if isinstance(name, tuple) else ""


async def _refuse(stream: HalfCloseableStream) -> None:
    async with stream:
        with trio.move_on_after(1), contextlib.suppress(trio.BrokenResourceError):
            await stream.send_all(
                b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 20\r\n"
                b"Connection: close\r\n\r\ntoo many connections"
            )
