"""The sockets that the agent listens on."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import trio

_SUN_PATH = 100  # sun_path holds 108 bytes with its NUL


class SocketInUseError(Exception):
    """Another agent lives on the same root directory."""


async def open_tcp(host: str, port: int) -> list[trio.SocketListener]:
    """Listen on a TCP address; port 0 picks one. Raises OSError if it is taken."""
    return list(await trio.open_tcp_listeners(port, host=host))


@contextlib.contextmanager
def root_lock(path: Path) -> Iterator[None]:
    """Hold the lock that makes this the only agent on its root directory.

    The kernel drops it with the process, however that ends, so a lock that is taken means
    a living agent and never a stale file. Raises `SocketInUseError`.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(descriptor, 32).decode("ascii", "replace").strip()
            raise SocketInUseError(
                f"another kubelet-trio{f' (pid {owner})' if owner else ''} runs on {path.parent}"
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def open_unix(path: Path, mode: int = 0o600) -> trio.SocketListener:
    """Listen on a unix socket, replacing what a dead agent left there.

    The caller holds `root_lock`, so whatever stands at `path` is stale. The mode is on the
    socket from the start: on Linux, bind takes it from the descriptor.
    """
    path.unlink(missing_ok=True)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        os.fchmod(sock.fileno(), mode)
        with _bindable(path) as address:
            sock.bind(address)
        sock.listen(128)
    except OSError:
        sock.close()
        raise
    sock.setblocking(False)
    return trio.SocketListener(trio.socket.from_stdlib_socket(sock))


@contextlib.contextmanager
def _bindable(path: Path) -> Iterator[str]:
    """Yield a name for `path` that fits into sun_path, through its directory if need be."""
    if len(os.fsencode(path)) <= _SUN_PATH:
        yield str(path)
        return
    directory = os.open(path.parent, os.O_PATH | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)
