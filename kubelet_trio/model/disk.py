"""Disk space of a file system."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """The space of a file system in bytes and inodes, and its device number."""

    capacity: int
    available: int  # to users other than root, as in df(1)
    inodes: int = 0
    inodes_free: int = 0
    device: int = 0


def disk_space(path: str | os.PathLike[str]) -> DiskSpace:
    """Return the space of the file system that a path is on. Blocks. Raises OSError."""
    found = os.statvfs(path)
    # Blocks are counted in f_frsize; f_bsize is only the preferred size of I/O (statvfs(3)).
    return DiskSpace(
        capacity=found.f_blocks * found.f_frsize,
        available=found.f_bavail * found.f_frsize,
        inodes=found.f_files,
        inodes_free=found.f_favail,
        device=os.stat(path).st_dev,
    )
