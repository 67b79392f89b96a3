"""fsGroup: a volume's files belong to a group, and so does what is made in it later.

As the Go kubelet does it: every file's group is changed, and read and write added for the
group (read alone where the volume is read-only); directories also get the search bit and
set-group-ID. Nothing is taken away. Links are changed themselves and never followed: the
walk goes by descriptors, so that a container cannot swap a directory for a link under it.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

_READ_WRITE = 0o660
_READ_ONLY = 0o440
_SEARCH = 0o110
_OPEN = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def own_volume(root: Path, group: int | None, *, read_only: bool, policy: str = "Always") -> None:
    """Give a volume to a group; None leaves it as it is. Raises OSError.

    Args:
        policy: `OnRootMismatch` spares the walk where the root is right already.
    """
    if group is None:
        return
    if policy == "OnRootMismatch" and _is_right(root.stat(), group, read_only=read_only):
        return
    for _, directories, files, descriptor in os.fwalk(root, topdown=False):
        for name in [*directories, *files]:
            _own_entry(name, group, descriptor, read_only=read_only)
        _own_open(descriptor, group, read_only=read_only)


def _is_right(found: os.stat_result, group: int, *, read_only: bool) -> bool:
    wanted = _wanted(is_directory=stat.S_ISDIR(found.st_mode), read_only=read_only)
    return found.st_gid == group and stat.S_IMODE(found.st_mode) & wanted == wanted


def _wanted(*, is_directory: bool, read_only: bool) -> int:
    bits = _READ_ONLY if read_only else _READ_WRITE
    return bits | stat.S_ISGID | _SEARCH if is_directory else bits


def _own_entry(name: str, group: int, directory: int, *, read_only: bool) -> None:
    """Own a file or a link; a directory has its own turn."""
    try:
        descriptor = os.open(name, _OPEN, dir_fd=directory)
    except FileNotFoundError:
        return  # whoever uses the volume as well took it away
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISLNK(mode):
            os.chown(name, -1, group, dir_fd=directory, follow_symlinks=False)
        elif not stat.S_ISDIR(mode):
            _own_open(descriptor, group, read_only=read_only)
    finally:
        os.close(descriptor)


def _own_open(descriptor: int, group: int, *, read_only: bool) -> None:
    found = os.fstat(descriptor)
    # By way of /proc, for an O_PATH descriptor; what it leads to cannot be swapped any more.
    place = f"/proc/self/fd/{descriptor}"
    os.chown(place, -1, group)
    wanted = _wanted(is_directory=stat.S_ISDIR(found.st_mode), read_only=read_only)
    os.chmod(place, stat.S_IMODE(found.st_mode) | wanted)
