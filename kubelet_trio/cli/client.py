"""The client of the agent's control socket: small, synchronous, fast to import."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import h11
import msgspec

DEFAULT_ROOT = "/var/lib/kubelet"
SOCKET_NAME = "kubelet-trio.sock"
_SUN_PATH = 100  # longest path for connect(2): sun_path has 108 bytes with its NUL (unix(7))


class ClientError(Exception):
    """A command failed; the text is for the user."""


class NoAgentError(ClientError):
    """No agent answers on the control socket."""


class AgentClient:
    """The agent of one root directory. Every call opens its own connection."""

    def __init__(self, root_dir: str = DEFAULT_ROOT, timeout: float | None = None) -> None:
        """Take where the agent is; `timeout`: seconds for each operation on a connection."""
        self._path = Path(root_dir) / SOCKET_NAME
        self._timeout = timeout

    def get(self, *segments: str, **query: str) -> Any:
        """Return the decoded JSON at a path. Raises `ClientError`, `NoAgentError`."""
        return msgspec.json.decode(b"".join(self.stream(*segments, **query)))

    def post(self, *segments: str, **query: str) -> Any:
        """Ask the agent for a change; return its decoded JSON. Raises `ClientError`."""
        return msgspec.json.decode(b"".join(self._ask("POST", segments, query)))

    def send(self, body: bytes, *segments: str, **query: str) -> Any:
        """Ask the agent for what a body says; likewise. Raises `ClientError`."""
        return msgspec.json.decode(b"".join(self._ask("POST", segments, query, body)))

    def text(self, *segments: str, **query: str) -> str:
        """Return the text at a path. Raises `ClientError`."""
        return b"".join(self.stream(*segments, **query)).decode("utf-8", "replace")

    def watch(self, *segments: str, **query: str) -> Iterator[Mapping[str, Any]]:
        """Yield the JSON lines of a watch until the agent ends it. Raises `ClientError`."""
        rest = b""
        for piece in self.stream(*segments, watch="1", **query):
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                yield msgspec.json.decode(line)

    def stream(self, *segments: str, **query: str) -> Iterator[bytes]:
        """Yield the body at a path as it arrives. Raises `ClientError` on any other response."""
        return self._ask("GET", segments, query)

    def _ask(
        self, method: str, segments: Sequence[str], query: Mapping[str, str], body: bytes = b""
    ) -> Iterator[bytes]:
        target = "/" + "/".join(quote(segment, safe="") for segment in segments)
        if query:
            target += f"?{urlencode(query)}"
        with self._connect() as sock:
            connection = h11.Connection(h11.CLIENT)
            headers = [("Host", "agent"), ("Connection", "close")]
            headers += [("Content-Length", str(len(body)))] if body else []
            request = h11.Request(method=method, target=target, headers=headers)
            sock.sendall(connection.send(request) or b"")
            if body:
                sock.sendall(connection.send(h11.Data(data=body)) or b"")
            # No bytes: the length is known, and only the state of h11 changes.
            connection.send(h11.EndOfMessage())
            yield from _body(sock, connection)

    @contextlib.contextmanager
    def upgraded(
        self,
        segments: Sequence[str],
        query: Sequence[tuple[str, str]],
        protocol: str,
        headers: Mapping[str, str],
    ) -> Iterator[tuple[socket.socket, bytes]]:
        """Yield a connection that was upgraded to `protocol`, and the bytes already read from it.

        Raises `ClientError` on any other response.
        """
        target = "/" + "/".join(quote(segment, safe="") for segment in segments)
        connection = h11.Connection(h11.CLIENT)
        named = {"Host": "agent", "Connection": "Upgrade", "Upgrade": protocol, **headers}
        request = h11.Request(
            method="GET", target=f"{target}?{urlencode(query)}", headers=list(named.items())
        )
        with self._connect() as sock:
            sock.sendall(
                (connection.send(request) or b"") + (connection.send(h11.EndOfMessage()) or b"")
            )
            # Reads the head of the response; `_body` raises for everything but 101.
            for _ in _body(sock, connection):
                break
            if connection.their_state is not h11.SWITCHED_PROTOCOL:
                raise ClientError("the agent is too old for this")
            # h11 does not parse what follows a 101: it may be the first frames.
            yield sock, connection.trailing_data[0]

    @contextlib.contextmanager
    def _connect(self) -> Iterator[socket.socket]:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(self._timeout)
            try:
                _connect(sock, self._path)
            except (FileNotFoundError, ConnectionRefusedError) as exc:
                cure = "" if os.geteuid() == 0 else " An agent of root needs sudo."
                raise NoAgentError(
                    f"no agent answers on {self._path} ({exc.strerror}); "
                    f"is it running, and on this --root-dir?{cure}"
                ) from exc
            except PermissionError as exc:
                raise ClientError(
                    f"cannot open {self._path}: {exc.strerror}; "
                    "only the agent's own user may use it: try sudo"
                ) from exc
            except OSError as exc:
                raise ClientError(f"cannot open {self._path}: {exc.strerror}") from exc
            yield sock


def open_control(path: str, timeout: float) -> socket.socket:
    """Connect to a control socket. Raises OSError.

    `timeout`: seconds for each operation on the connection.
    """
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.settimeout(timeout)
        _connect(sock, Path(path))
    except OSError:
        sock.close()
        raise
    return sock


def _connect(sock: socket.socket, path: Path) -> None:
    if len(os.fsencode(path)) <= _SUN_PATH:
        sock.connect(str(path))
        return
    # Too long for sun_path: reach the socket through a descriptor of its directory.
    directory = os.open(path.parent, os.O_PATH | os.O_CLOEXEC)
    try:
        sock.connect(f"/proc/self/fd/{directory}/{path.name}")
    finally:
        os.close(directory)


def _body(sock: socket.socket, connection: h11.Connection) -> Iterator[bytes]:
    status = 200
    refusal = b""
    while True:
        try:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                connection.receive_data(sock.recv(65536))
                continue
        except (h11.RemoteProtocolError, OSError) as exc:
            raise ClientError("the agent ended the connection") from exc
        if isinstance(event, h11.InformationalResponse) and event.status_code == 101:
            return
        if isinstance(event, h11.Response):
            status = event.status_code
        elif isinstance(event, h11.Data) and status == 200:
            yield bytes(event.data)
        elif isinstance(event, h11.Data):
            refusal += event.data
        elif isinstance(event, h11.EndOfMessage):
            if status != 200:
                raise ClientError(refusal.decode("utf-8", "replace").strip() or f"HTTP {status}")
            return
