"""Unix sockets in memory: what a simulation's agent connects to, with no kernel in between.

The kernel's sockets would do, but a run then depends on when the kernel says what.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import trio

Dial = Callable[[str], Awaitable[trio.abc.HalfCloseableStream]]


class MemorySockets(trio.abc.SocketFactory):
    """Makes sockets that connect through `dial`, for trio.socket.set_custom_socket_factory."""

    def __init__(self, dial: Dial) -> None:
        self._dial = dial

    def socket(self, family: Any = -1, type: Any = -1, proto: int = -1) -> MemorySocket:  # noqa: A002
        assert family == socket.AF_UNIX, "the simulated node has no network"
        return MemorySocket(self._dial)


class MemorySocket(trio.socket.SocketType):
    """As much of a socket as trio.SocketStream needs."""

    def __init__(self, dial: Dial) -> None:
        super().__init__()
        self._dial = dial
        self._stream: trio.abc.HalfCloseableStream | None = None
        self._is_closed = False

    @property
    def type(self) -> socket.SocketKind:
        return socket.SOCK_STREAM

    @property
    def did_shutdown_SHUT_WR(self) -> bool:  # noqa: N802  # trio's name
        return False

    def fileno(self) -> int:
        return -1 if self._is_closed else 0

    def setsockopt(self, *_: Any) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    async def connect(self, address: Any) -> None:
        self._stream = await self._dial(os.fsdecode(address))

    async def send(self, data: Any, _flags: int = 0, /) -> int:
        content = bytes(data)
        try:
            await self._open().send_all(content)
        except trio.BrokenResourceError as exc:
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE)) from exc
        return len(content)

    async def recv(self, size: int, _flags: int = 0, /) -> bytes:
        try:
            return bytes(await self._open().receive_some(size))
        except trio.BrokenResourceError as exc:
            raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)) from exc

    async def wait_writable(self) -> None:
        await self._open().wait_send_all_might_not_block()

    def shutdown(self, _how: int) -> None:
        """Do nothing: whoever ends a call closes the socket afterwards."""

    def close(self) -> None:
        self._is_closed = True
        if isinstance(self._stream, trio.StapledStream):
            self._stream.send_stream.close()
            self._stream.receive_stream.close()

    def _open(self) -> trio.abc.HalfCloseableStream:
        if self._stream is None or self._is_closed:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return self._stream
