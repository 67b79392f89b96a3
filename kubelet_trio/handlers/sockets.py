"""TCP connections of probes and hooks, which are closed without leaving a TIME_WAIT.

One probe per second in each of 100 pods would leave 6000 sockets in TIME_WAIT. Upstream sets
SO_LINGER to 1 s against that. On Linux that does not avoid TIME_WAIT (measured: 50 of 50 remain),
and close() then waits for an acknowledgement, which would block the Trio thread. A reset
(SO_LINGER 0) leaves no TIME_WAIT, but a server that reads gets ECONNRESET, which some log and some
crash on.

So `finish` sends FIN and then RST. The peer's kernel processes the FIN first and marks the
connection as ended, and the server reads a clean end of file although the reset follows (Linux
checks SOCK_DONE before the error). Neither side keeps a TIME_WAIT, unless the server closes between
the two: 7 of 50 with a server that does nothing else. After an HTTP answer the server has finished
with the connection, and `reset` alone is right.

Plain sockets with `wait_readable` are cheaper than `trio.socket`, and suffice here.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
from typing import Any

import trio
import trio.socket

from kubelet_trio.handlers.errors import DialError, errno_text, join_host_port

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
_CHUNK = 16 * 1024  # bytes; bounds the parsing between two yields to other tasks


class Connection:
    """A connected TCP socket. Its methods raise OSError."""

    __slots__ = ("_socket", "first")

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self.first = b""  # the first bytes of the peer's answer

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send everything."""
        view = memoryview(data)
        while view:
            try:
                view = view[self._socket.send(view) :]
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self._socket)
        await trio.lowlevel.checkpoint()

    async def receive_some(self) -> bytes:
        """Return the next data; b"" at the end."""
        while True:
            await trio.lowlevel.wait_readable(self._socket)
            with contextlib.suppress(BlockingIOError):
                data = self._socket.recv(_CHUNK)
                self.first = self.first or data[:8]
                return data

    def finish(self) -> None:
        """Close with FIN and RST, for a peer that still reads; see the module. Does not block."""
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            if not self._has_ended():
                self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # the connection is lost already
        finally:
            self._socket.close()

    def reset(self) -> None:
        """Close with RST, for a peer that has sent its answer. Does not block."""
        with contextlib.suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self._socket.close()

    def _has_ended(self) -> bool:
        """Return whether the peer has closed: our FIN would then put its side into TIME_WAIT."""
        try:
            return not self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False


async def connect(host: str, port: int) -> Connection:
    """Open a connection; close it with `finish` or `reset`. Raises `DialError`.

    A name is looked up in a thread, and its addresses are tried one after the other.
    """
    error = DialError(f"dial tcp: lookup {host}: no such host")
    try:
        # As in Go, an empty host is this machine.
        found = await trio.socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as exc:
        raise error from exc
    for family, kind, protocol, _, address in found:
        try:
            return await _dial(family, kind, protocol, address)
        except OSError as exc:
            where = join_host_port(str(address[0]), port)
            error = DialError(f"dial tcp {where}: connect: {errno_text(exc)}")
    raise error


async def _dial(family: int, kind: int, protocol: int, address: Any) -> Connection:
    sock = socket.socket(family, kind | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC, protocol)
    with contextlib.ExitStack() as unless_connected:
        unless_connected.callback(sock.close)
        code = sock.connect_ex(address)
        # A non-blocking connect: the socket becomes writable once it succeeds or fails, connect(2).
        if code == errno.EINPROGRESS:
            await trio.lowlevel.wait_writable(sock)
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))
        unless_connected.pop_all()
    return Connection(sock)


class Wire(trio.abc.Stream):
    """A connection as a Trio stream, for TLS and HTTP/2."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send everything. Raises trio.BrokenResourceError."""
        try:
            await self._connection.send_all(data)
        except OSError as exc:
            raise trio.BrokenResourceError(errno_text(exc)) from exc

    async def wait_send_all_might_not_block(self) -> None:
        """Return at once: a probe sends too little for waiting to matter."""
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Return the next data; b"" at the end. Raises trio.BrokenResourceError."""
        try:
            return await self._connection.receive_some()
        except OSError as exc:
            raise trio.BrokenResourceError(errno_text(exc)) from exc

    async def aclose(self) -> None:
        """Close as `Connection.finish` does."""
        self._connection.finish()
        await trio.lowlevel.checkpoint()
