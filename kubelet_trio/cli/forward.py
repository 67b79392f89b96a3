"""`kubelet-trio port-forward`: local ports whose connections go into a pod.

One SPDY connection through the control socket, with two streams for each forwarded connection, as
kubectl does: unlike with WebSocket channels, each side can end its direction.
Source: client-go's tools/portforward.
"""

from __future__ import annotations

import itertools
import socket
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import click
import trio

from kubelet_trio.cli.client import AgentClient, ClientError
from kubelet_trio.cli.podstate import Json, items, part
from kubelet_trio.streaming import FORWARD_SPDY, PEER_GONE, SpdyLink, SpdyStream

_PIECE = 64 * 1024  # bytes
_HIGHEST = 65535


class Forward(NamedTuple):
    """A local port (0: any free one) and the pod's port that it leads to."""

    local: int
    remote: int


def parse_forward(text: str, pod: Json) -> Forward:
    """Return the meaning of `[LOCAL:]REMOTE`; the remote port may be a name in the pod.

    Raises `ClientError`.
    """
    local, colon, remote = text.rpartition(":")
    number = _port(remote, text) if remote.isdigit() else _named_port(remote, pod)
    if not number:
        raise ClientError(f'"{text}": the remote port must be between 1 and {_HIGHEST}')
    if not colon:
        # A name or number alone: the same port here.
        return Forward(number, number)
    return Forward(_port(local, text) if local else 0, number)


def _port(text: str, whole: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) <= _HIGHEST):
        raise ClientError(f'"{whole}" is no port: write [LOCAL:]REMOTE, such as 8080:80')
    return int(text)


def _named_port(name: str, pod: Json) -> int:
    known = {
        str(port["name"]): int(port["containerPort"])
        for kind in ("containers", "initContainers")
        for container in items(part(pod, "spec"), kind)
        for port in items(container, "ports")
        if port.get("name")
    }
    if name not in known:
        named = f"its ports are called {', '.join(sorted(known))}" if known else "it names none"
        raise ClientError(f'the pod has no port "{name}": {named}')
    return known[name]


def run(
    agent: AgentClient,
    namespace: str,
    pod: str,
    forwards: Sequence[Forward],
    addresses: Sequence[str],
) -> None:
    """Forward until Ctrl-C, a KeyboardInterrupt. Raises `ClientError` if pod or agent is gone."""
    headers = {"X-Stream-Protocol-Version": FORWARD_SPDY[0]}
    with agent.upgraded(("portforward", namespace, pod), [], "SPDY/3.1", headers) as (sock, early):
        try:
            trio.run(_forward, sock.dup(), early, forwards, addresses)
        except* KeyboardInterrupt:
            raise KeyboardInterrupt from None
        except* OSError as exc:
            raise ClientError(str(exc.exceptions[0])) from exc
    raise ClientError(f"lost connection to pod {pod}")


async def _forward(
    sock: socket.socket, early: bytes, forwards: Sequence[Forward], addresses: Sequence[str]
) -> None:
    """Forward until the agent ends the connection. Raises OSError if no port can be opened."""
    stream = trio.SocketStream(trio.socket.from_stdlib_socket(sock))
    requests = itertools.count()
    async with trio.open_nursery() as nursery, stream:
        link = SpdyLink(stream, is_client=True, early=early)
        nursery.start_soon(link.run)
        for forward in forwards:
            for listener in await _listeners(forward, addresses):
                serve = partial(_serve, link, requests, listener.socket.getsockname()[1], forward)
                nursery.start_soon(trio.serve_listeners, serve, [listener])
        await link.ended.wait()
        nursery.cancel_scope.cancel()


async def _listeners(forward: Forward, addresses: Sequence[str]) -> list[trio.SocketListener]:
    """Open the local ports of a forward and say so. Raises OSError if there is none of them."""
    opened: list[trio.SocketListener] = []
    problems: list[str] = []
    local = forward.local
    for address in _expanded(addresses):
        try:
            found = await trio.open_tcp_listeners(local, host=address)
        except OSError as exc:
            problems.append(f"{_shown(address, local)}: {exc.strerror or exc}")
            continue
        opened += found
        # With port 0 the first address chooses, and the others take the same.
        local = found[0].socket.getsockname()[1]
        click.echo(f"Forwarding from {_shown(address, local)} -> {forward.remote}")
    # `localhost` is two addresses, and a machine without IPv6 has one of them.
    if not opened:
        raise OSError(f"cannot listen on port {forward.local}: {'; '.join(problems)}")
    return opened


def _expanded(addresses: Sequence[str]) -> list[str]:
    both = {"localhost": ("127.0.0.1", "::1")}
    return [one for address in addresses for one in both.get(address, (address,))]


def _shown(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


async def _serve(
    link: SpdyLink,
    requests: Iterator[int],
    local: int,
    forward: Forward,
    client: trio.SocketStream,
) -> None:
    """Connect one local client with the pod until either ends."""
    click.echo(f"Handling connection for {local}")
    named = {"port": str(forward.remote), "requestid": str(next(requests))}
    with suppress(*PEER_GONE):
        # The error stream first, as client-go: old servers pair streams by their order.
        async with (
            await link.open({"streamtype": "error", **named}) as errors,
            await link.open({"streamtype": "data", **named}) as data,
        ):
            await errors.send_eof()
            await _join(client, data)
            refusal = b"".join([piece async for piece in errors])
            if refusal:
                text = refusal.decode("utf-8", "replace")
                click.echo(f"error: {local} -> {forward.remote}: {text}", err=True)


async def _join(client: trio.SocketStream, data: SpdyStream) -> None:
    """Copy in both directions until the pod's side ends; the client's end is passed on."""

    async def upwards() -> None:
        with suppress(*PEER_GONE):
            while content := await client.receive_some(_PIECE):
                await data.send_all(content)
            await data.send_eof()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(upwards)
        with suppress(*PEER_GONE):
            while content := await data.receive_some():
                await client.send_all(content)
        nursery.cancel_scope.cancel()
