"""`kubelet-trio fleet`: one page of several nodes, served on this machine.

The command asks each agent itself, as its user may: over control sockets, or over pages on loopback
ports (of this machine, or forwarded by ssh). No agent asks another one.
"""

from __future__ import annotations

import errno
import http.client
import secrets
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import trio

from kubelet_trio.cli.client import SOCKET_NAME, ClientError, open_control
from kubelet_trio.model import Purpose, thread_offload
from kubelet_trio.server import (
    failed_node,
    fleet_node,
    fleet_router,
    is_loopback_host,
    loopback_only,
    open_tcp,
    serve_http,
)

_TIMEOUT = 5.0  # seconds for each step of asking a node
_LARGEST = 32 << 20  # bytes of an answer
_FRESH = 1.5  # seconds that answers are shared by several pages


@dataclass(frozen=True, slots=True)
class FleetNode:
    """A node and where its agent answers: `socket` or `port`."""

    name: str
    socket: str = ""
    host: str = ""
    port: int = 0

    @property
    def link(self) -> str:
        """The address of the node's own page, as far as it is known from here."""
        return f"http://{self.host}:{self.port}/ui/" if self.host else ""


def parse_node(text: str) -> FleetNode:
    """Read NAME=unix:PATH or NAME=http://localhost:PORT. Raises ValueError with what is wrong."""
    name, sign, place = text.partition("=")
    if not name or not sign or not place:
        raise ValueError(f"{text!r}: expected NAME=unix:DIR or NAME=http://localhost:PORT")
    if place.startswith("unix:"):
        path = place.removeprefix("unix:").rstrip("/")
        if not path.startswith("/"):
            raise ValueError(f"{text!r}: expected an absolute path after unix:")
        return FleetNode(name, path if path.endswith(".sock") else f"{path}/{SOCKET_NAME}")
    url = urlsplit(place)
    try:
        port = url.port
    except ValueError:
        port = None
    if url.scheme != "http" or not port or not is_loopback_host(url.netloc):
        raise ValueError(
            f"{text!r}: expected http://localhost:PORT; forward the page of another machine "
            "with `ssh -L PORT:localhost:4194 MACHINE`"
        )
    return FleetNode(name, host=url.netloc.rpartition(":")[0], port=port)


def ask(node: FleetNode) -> bytes:
    """Return the `/ui/data` of a node. Blocks. Raises OSError, `ClientError`, HTTPException."""
    host = node.host.strip("[]") or "localhost"
    connection = http.client.HTTPConnection(host, node.port or 80, timeout=_TIMEOUT)
    try:
        if node.socket:
            connection.sock = open_control(node.socket, _TIMEOUT)
        connection.request("GET", "/ui/data")
        answer = connection.getresponse()
        body = answer.read(_LARGEST)
        if answer.status != 200:
            text = body[:200].decode("utf-8", "replace").strip()
            raise ClientError(f"HTTP {answer.status}: {text}; is the agent too old?")
        return body
    finally:
        connection.close()


class Fleet:
    """Asks the nodes, all at once."""

    def __init__(self, nodes: Sequence[FleetNode]) -> None:
        self._nodes = nodes
        self._offload = thread_offload.of(Purpose.LOGS)
        self._lock = trio.Lock()
        self._asked_at = -_FRESH
        self._told: list[Mapping[str, Any]] = []

    async def told(self) -> list[Mapping[str, Any]]:
        """Return what each node tells, at most some seconds old."""
        async with self._lock:
            if trio.current_time() - self._asked_at >= _FRESH:
                told: dict[str, Mapping[str, Any]] = {}
                async with trio.open_nursery() as nursery:
                    for node in self._nodes:
                        nursery.start_soon(self._ask, node, told)
                self._told = [told[node.name] for node in self._nodes]
                self._asked_at = trio.current_time()
            return self._told

    async def _ask(self, node: FleetNode, told: dict[str, Mapping[str, Any]]) -> None:
        try:
            told[node.name] = fleet_node(node.name, node.link, await self._offload(ask, node))
        except (OSError, ClientError, ValueError, http.client.HTTPException) as exc:
            told[node.name] = failed_node(node.name, node.link, _words(node, exc))


def _words(node: FleetNode, exc: Exception) -> str:
    place = node.socket or f"{node.host}:{node.port}"
    if isinstance(exc, socket.timeout):
        return f"{place}: no answer within {_TIMEOUT:.0f} s"
    text = (exc.strerror if isinstance(exc, OSError) else None) or str(exc)
    return f"{place}: {text or type(exc).__name__}"


async def serve_fleet(nodes: Sequence[FleetNode], port: int) -> None:
    """Serve the page on 127.0.0.1 until cancelled; its address is printed. Port 0: any.

    Raises:
        ClientError: the port cannot be opened.
    """
    secret = secrets.token_urlsafe(18)
    try:
        listeners = await open_tcp("127.0.0.1", port)
    except OSError as exc:
        cure = "; choose another --port" if exc.errno == errno.EADDRINUSE else ""
        raise ClientError(f"--port 127.0.0.1:{port}: {exc.strerror}{cure}") from exc
    number = listeners[0].socket.getsockname()[1]
    print(f"http://localhost:{number}/{secret}/", flush=True)
    print("Only who has this address can open it. Ctrl-C ends it.", file=sys.stderr)
    await serve_http(loopback_only(fleet_router(Fleet(nodes).told, secret)), listeners)
