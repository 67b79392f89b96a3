"""Listening sockets: open them, lock the root directory, find the process that holds a port."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import trio

from kubelet_trio.server.errors import SocketInUseError

_SUN_PATH = 100  # unix(7): sun_path holds 108 bytes with its NUL
_LISTEN = "0A"  # TCP_LISTEN of include/net/tcp_states.h
_MAX_LINES = 100_000  # read of a table, and descriptors looked at: bounds the work


async def open_tcp(host: str, port: int) -> list[trio.SocketListener]:
    """Listen on a TCP address; port 0 picks a free one. Raises OSError, if it is in use too."""
    # As bytes: the codec for names in Unicode has 200 KB of tables.
    name = host.encode() if host.isascii() else host
    return list(await trio.open_tcp_listeners(port, host=name))


@contextlib.contextmanager
def root_lock(path: Path) -> Iterator[None]:
    """Hold the lock that makes this agent the only one on its root directory.

    Raises `SocketInUseError`. The kernel releases a flock(2) when the process ends, so a lock
    that is held always means a running agent, never a stale file.
    """
    # Not truncated here: until we hold the lock, the file has the pid of the running agent.
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
    """Listen on a unix socket; a file at `path` is replaced. Raises OSError.

    The caller holds `root_lock`, so a socket at `path` is left over from an agent that has ended.
    """
    # bind(2) fails with EADDRINUSE if the file exists, whether or not a process listens on it.
    path.unlink(missing_ok=True)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # Before bind: Linux creates the file with the descriptor's mode, so it never has a wider
        # one.
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
    """Yield a name for `path` that fits into sun_path; a long one leads through /proc."""
    if len(os.fsencode(path)) <= _SUN_PATH:
        yield str(path)
        return
    # The kernel resolves the link of an O_PATH descriptor like any other directory.
    directory = os.open(path.parent, os.O_PATH | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that listens on a port."""

    pid: int
    name: str

    def __str__(self) -> str:
        return f"{self.name} (pid {self.pid})"


def peer_name(stream: trio.SocketStream) -> str:
    """Return the process at the other end of a unix socket, as `name (pid 12)`."""
    size = struct.calcsize("3i")
    found = stream.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    pid, _, _ = struct.unpack("3i", found)  # unix(7): struct ucred
    # The name is from memory of the kernel: no disk can block this read.
    return str(Holder(pid, _name(pid, Path("/proc"))))


def find_holder(host: str, port: int, proc: Path = Path("/proc")) -> Holder | None:
    """Return the process that listens on a port; None if it cannot be found. Blocks.

    The tables of sockets (proc_pid_net(5)) give the socket's inode; the holder is the process
    with a descriptor on it. Only root sees the descriptors of other users' processes.
    """
    sockets = set(_listening(host, port, proc))
    if not sockets:
        return None
    try:
        pids = [int(entry.name) for entry in proc.iterdir() if entry.name.isdecimal()]
    except OSError:
        return None
    links = islice(_socket_links(sorted(pids), proc), _MAX_LINES)
    pid = next((pid for pid, link in links if link in sockets), None)
    return None if pid is None else Holder(pid, _name(pid, proc))


def _listening(host: str, port: int, proc: Path) -> Iterator[str]:
    """Yield the sockets that block an address, in the form of their links in /proc."""
    wanted = _hex_address(host)
    for table in ("tcp", "tcp6"):
        try:
            with (proc / "net" / table).open(encoding="ascii", errors="replace") as lines:
                rows = [line.split() for line in islice(lines, 1, _MAX_LINES)]
        except OSError:
            continue  # a kernel without this address family, or no /proc
        for row in rows:
            # Columns: sl, local_address, rem_address, st, ..., inode.
            if len(row) < 10 or row[3] != _LISTEN:
                continue
            address, _, number = row[1].partition(":")
            if number == f"{port:04X}" and _overlap(address, wanted):
                yield f"socket:[{row[9]}]"


def _overlap(one: str, other: str) -> bool:
    """Whether two addresses cannot both be bound: they are equal, or one is the wildcard."""
    return one == other or not one.strip("0") or not other.strip("0")


def _hex_address(host: str) -> str:
    """Return an address as /proc/net/tcp has it; "" (any) for a host name."""
    for family, words in ((socket.AF_INET, "=I"), (socket.AF_INET6, "=4I")):
        try:
            packed = socket.inet_pton(family, host)
        except OSError:
            continue
        # The tables print each 32-bit word of an address in the machine's byte order.
        return "".join(f"{word:08X}" for word in struct.unpack(words, packed))
    return ""


def _socket_links(pids: list[int], proc: Path) -> Iterator[tuple[int, str]]:
    for pid in pids:
        directory = proc / str(pid) / "fd"
        try:
            descriptors = os.listdir(directory)
        except OSError:
            continue  # another user's process, or it has ended
        for descriptor in descriptors:
            try:
                yield pid, os.readlink(directory / descriptor)
            except OSError:
                continue  # closed meanwhile


def _name(pid: int, proc: Path) -> str:
    try:
        return (proc / str(pid) / "comm").read_text(errors="replace").strip()
    except OSError:
        return "a process"
