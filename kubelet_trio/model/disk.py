"""How much room a file system has. Asking blocks: callers use a thread."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """A file system: bytes, inodes, and which device it is on."""

    capacity: int
    available: int  # to users other than root, as df has it
    inodes: int = 0
    inodes_free: int = 0
    device: int = 0


def disk_space(path: str | os.PathLike[str]) -> DiskSpace:
    """Return the room on the file system that a path is on. Raises OSError."""
    found = os.statvfs(path)
    return DiskSpace(
        capacity=found.f_blocks * found.f_frsize,
        available=found.f_bavail * found.f_frsize,
        inodes=found.f_files,
        inodes_free=found.f_favail,
        device=os.stat(path).st_dev,
    )
