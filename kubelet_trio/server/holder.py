"""Who listens on a TCP port, read from /proc.

The tables of sockets (proc_pid_net(5)) give the socket's inode, and the holder is the process
with a descriptor on it. Descriptors of other users' processes show only to root.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

_LISTEN = "0A"  # TCP_LISTEN of include/net/tcp_states.h
_MOST_LINES = 100_000  # of a table, and of descriptors: what is looked through is bounded


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that has a port."""

    pid: int
    name: str

    def __str__(self) -> str:
        return f"{self.name} (pid {self.pid})"


def find_holder(host: str, port: int, proc: Path = Path("/proc")) -> Holder | None:
    """Return the process that listens on a port; None where /proc does not tell. Blocks."""
    sockets = set(_listening(host, port, proc))
    if not sockets:
        return None
    try:
        pids = [int(entry.name) for entry in proc.iterdir() if entry.name.isdecimal()]
    except OSError:
        return None
    links = islice(_socket_links(sorted(pids), proc), _MOST_LINES)
    pid = next((pid for pid, link in links if link in sockets), None)
    return None if pid is None else Holder(pid, _name(pid, proc))


def _listening(host: str, port: int, proc: Path) -> Iterator[str]:
    """Yield the sockets that stand in the way of an address, as their links in /proc show."""
    wanted = _hex_address(host)
    for table in ("tcp", "tcp6"):
        try:
            with (proc / "net" / table).open(encoding="ascii", errors="replace") as lines:
                rows = [line.split() for line in islice(lines, 1, _MOST_LINES)]
        except OSError:
            continue  # no such family, or no /proc
        for row in rows:
            if len(row) < 10 or row[3] != _LISTEN:
                continue
            address, _, number = row[1].partition(":")
            if number == f"{port:04X}" and _meet(address, wanted):
                yield f"socket:[{row[9]}]"


def _meet(one: str, other: str) -> bool:
    """Whether two addresses cannot both be had: the same, or one of them is all of them."""
    return one == other or not one.strip("0") or not other.strip("0")


def _hex_address(host: str) -> str:
    """Return an address as the kernel writes it; "" (any) for a name."""
    for family, words in ((socket.AF_INET, "=I"), (socket.AF_INET6, "=4I")):
        try:
            packed = socket.inet_pton(family, host)
        except OSError:
            continue
        return "".join(f"{word:08X}" for word in struct.unpack(words, packed))
    return ""


def _socket_links(pids: list[int], proc: Path) -> Iterator[tuple[int, str]]:
    for pid in pids:
        directory = proc / str(pid) / "fd"
        try:
            descriptors = os.listdir(directory)
        except OSError:
            continue  # another user's, or gone
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
