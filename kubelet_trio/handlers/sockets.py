"""Connections of probes and hooks: opened without threads, closed without a trace.

A probe a second of a hundred pods leaves 6000 sockets in TIME_WAIT if each is closed the
usual way. Upstream sets SO_LINGER to 1 s against that. On Linux this changes nothing about
TIME_WAIT (measured: 50 of 50 stay), and it lets close() wait for an acknowledgement, which
a goroutine can afford and a single thread cannot. A reset (SO_LINGER 0) leaves nothing,
but a server that reads gets ECONNRESET for it, which some log and some die of.

So `finish` sends FIN, then RST: the peer's kernel takes the FIN first, marks the
connection as ended, and the server reads a clean end of file even though the reset
follows (Linux looks at SOCK_DONE before it looks at the error). Neither side keeps
anything, unless the server closed between the two: 7 of 50 with one that waits for nothing
else. After an HTTP answer, which such a server is through with, `reset` alone is right.

Plain sockets and `wait_readable`, for nothing of what `trio.socket` does beyond is needed.
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

from kubelet_trio.handlers._errors import DialError
from kubelet_trio.handlers.texts import errno_text, join_host_port

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
_CHUNK = 16 * 1024  # what one step of the loop parses at most; a container wrote it


class Connection:
    """A connected TCP socket. Its methods raise OSError."""

    __slots__ = ("_socket", "first")

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self.first = b""  # how the peer's answer began

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
        """Return what came next, empty at the end."""
        while True:
            await trio.lowlevel.wait_readable(self._socket)
            with contextlib.suppress(BlockingIOError):
                data = self._socket.recv(_CHUNK)
                self.first = self.first or data[:8]
                return data

    def finish(self) -> None:
        """End what the peer may still read; see the module. Never waits or raises."""
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            if not self._has_ended():
                self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # lost already
        finally:
            self._socket.close()

    def reset(self) -> None:
        """Drop what the peer has no more to say on. Never waits or raises."""
        with contextlib.suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self._socket.close()

    def _has_ended(self) -> bool:
        """Whether the peer has closed: a FIN from us as well would put it into TIME_WAIT."""
        try:
            return not self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False


async def connect(host: str, port: int) -> Connection:
    """Return a connection; to be closed with `finish` or `reset`.

    A name is looked up (in a thread) and its addresses are tried one after the other; an
    address is not. Raises `DialError`.
    """
    error = DialError(f"dial tcp: lookup {host}: no such host")
    try:
        # An empty host is this machine, as it is to Go.
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
        if code == errno.EINPROGRESS:
            await trio.lowlevel.wait_writable(sock)
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))
        unless_connected.pop_all()
    return Connection(sock)


class Wire(trio.abc.Stream):
    """A connection as a trio stream, for TLS and HTTP/2 on top."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send everything. Raises trio.BrokenResourceError."""
        try:
            await self._connection.send_all(data)
        except OSError as exc:
            raise trio.BrokenResourceError(errno_text(exc)) from exc

    async def wait_send_all_might_not_block(self) -> None:
        """Return at once: nothing is gained by asking before sending this little."""
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Return what came, empty at the end. Raises trio.BrokenResourceError."""
        try:
            return await self._connection.receive_some()
        except OSError as exc:
            raise trio.BrokenResourceError(errno_text(exc)) from exc

    async def aclose(self) -> None:
        """Close for good, see `Connection.finish`."""
        self._connection.finish()
        await trio.lowlevel.checkpoint()
