"""The node's own disks: their space and I/O, for `/metrics/cadvisor`.

Only disks with a file system of the kernel's own. statvfs(3) on one of FUSE or of a file server can
hang, and a hidden mount point shows another file system: both are left out.
"""

from __future__ import annotations

import os
import re
import select
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from kubelet_trio.stats.open_files import Host, Room, content

_LOCAL = re.compile(r" - (?:ext[234]|xfs|btrfs) (/dev/\S+)", re.ASCII)
_MOST = 64  # disks


@dataclass(frozen=True, slots=True)
class DiskIo:
    """Counts of one device since the boot; seconds are floats (diskstats in iostats.rst)."""

    reads: int
    reads_merged: int
    sectors_read: int
    read_seconds: float
    writes: int
    writes_merged: int
    sectors_written: int
    write_seconds: float
    in_flight: int
    io_seconds: float
    weighted_seconds: float


@dataclass(frozen=True, slots=True)
class Disk:
    """A device with a mounted file system."""

    device: str
    capacity: int  # bytes
    used: int  # bytes
    inodes: int
    inodes_free: int
    io: DiskIo | None = None


def visible_mounts(mountinfo: str) -> dict[str, str]:
    """Return a mount point that shows the file system of each local device, by device."""
    lines = mountinfo.splitlines()
    points = [line.split(" ", 5)[4] if line.count(" ") > 5 else "" for line in lines]
    found: dict[str, str] = {}
    for number, line in enumerate(lines):
        match = _LOCAL.search(line)
        if match is None or match[1] in found or len(found) >= _MOST:
            continue
        point = points[number]
        # Whatever is mounted later at the point, or above it, hides it.
        if point and not any(_is_within(point, later) for later in points[number + 1 :]):
            found[match[1]] = _unescaped(point)
    return found


def _is_within(path: str, other: str) -> bool:
    return bool(other) and (path == other or path.startswith(other.rstrip("/") + "/"))


def _unescaped(path: str) -> str:
    # mangle() in fs/proc_namespace.c: blanks and backslashes are in octal.
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), path)


def parse_diskstats(text: str) -> dict[str, DiskIo]:
    """Return /proc/diskstats by the devices' names."""
    found = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) < 14 or not all(word.isdecimal() for word in words[3:14]):
            continue
        n = [int(word) for word in words[3:14]]
        found[words[2]] = DiskIo(
            reads=n[0],
            reads_merged=n[1],
            sectors_read=n[2],
            read_seconds=n[3] / 1000,
            writes=n[4],
            writes_merged=n[5],
            sectors_written=n[6],
            write_seconds=n[7] / 1000,
            in_flight=n[8],
            io_seconds=n[9] / 1000,
            weighted_seconds=n[10] / 1000,
        )
    return found


class Mounts:
    """The `visible_mounts` of this process. Not thread-safe.

    A node of 100 pods has 500 mounts. The kernel tells whoever has the table open that it has
    changed (poll(2) of /proc/<pid>/mountinfo, proc_pid_mountinfo(5)): else it is not read again.
    """

    def __init__(self, host: Host, room: Room) -> None:
        """Args:
        host: paths of the kernel's files.
        room: for the table; without it is read each time.
        """
        self._path = f"{host.proc}/self/mountinfo"
        self._room = room
        self._descriptor: int | None = None
        self._changes = select.poll()
        self._found: dict[str, str] = {}

    def visible(self) -> Mapping[str, str]:
        """Return them as they are now; none if the table cannot be read. Blocks."""
        if self._descriptor is not None:
            # First asked, then read: a change in between is told the next time.
            if self._changes.poll(0):
                self._read_again(self._descriptor)
            return self._found
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return {}
        try:
            found = _read_mounts(descriptor)
        except OSError:
            os.close(descriptor)
            return {}
        if self._room.left < 1:
            os.close(descriptor)
            return found
        self._room.left -= 1
        self._descriptor, self._found = descriptor, found
        self._changes.register(descriptor, select.POLLPRI)
        return found

    def _read_again(self, descriptor: int) -> None:
        try:
            self._found = _read_mounts(descriptor)
        except OSError:
            # The change is not told twice: the next look opens the table anew.
            self.close()
            self._found = {}

    def close(self) -> None:
        """Let go of the table."""
        if self._descriptor is not None:
            self._changes.unregister(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None
            self._room.left += 1


def _read_mounts(descriptor: int) -> dict[str, str]:
    return visible_mounts(content(descriptor).decode("utf-8", "replace"))


def read_disks(
    read: Callable[[str], str | None], proc: str, mounts: Mapping[str, str]
) -> tuple[Disk, ...]:
    """Return the node's disks that `mounts` show, in the order of their names. Blocks."""
    stats = parse_diskstats(read(f"{proc}/diskstats") or "") if mounts else {}
    return tuple(_disks(mounts, stats))


def _disks(mounts: Mapping[str, str], stats: dict[str, DiskIo]) -> Iterator[Disk]:
    for device, point in sorted(mounts.items()):
        try:
            space = os.statvfs(point)
            # /dev/mapper/… and the like are links to what the kernel calls the device.
            name = os.path.basename(os.path.realpath(device))
        except OSError:
            continue
        yield Disk(
            device,
            space.f_blocks * space.f_frsize,
            (space.f_blocks - space.f_bfree) * space.f_frsize,
            space.f_files,
            space.f_ffree,
            stats.get(name),
        )
