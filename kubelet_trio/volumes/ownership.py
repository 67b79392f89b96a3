"""fsGroup: a volume's files belong to a group, and so does what is made in it later.

As the Go kubelet does it: every file's group is changed, and read and write added for the
group (read alone where the volume is read-only); directories also get the search bit and
set-group-ID. Nothing is taken away. Links are changed themselves and never followed: the
walk goes by descriptors, so that a container cannot swap a directory for a link under it.

However deep a container has nested its directories, the walk holds two descriptors and a name
a level: it comes back by `..`, which must be the directory that it went down from.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kubelet_trio.model import open_directory
from kubelet_trio.volumes.progress import Walks

_READ_WRITE = 0o660
_READ_ONLY = 0o440
_SEARCH = 0o110
_OPEN = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def own_volume(
    root: Path,
    group: int | None,
    *,
    read_only: bool,
    policy: str = "Always",
    walks: Walks | None = None,
) -> None:
    """Give a volume to a group; None leaves it as it is. Raises OSError.

    Args:
        walks: where its progress is to be seen.
        policy: `OnRootMismatch` spares the walk where the root is right already.
    """
    if group is None:
        return
    descriptor = open_directory(root)
    try:
        found = os.fstat(descriptor)
        if policy == "OnRootMismatch" and _is_right(found, group, read_only=read_only):
            return
        with (walks or Walks()).walk(root) as walk:
            own_tree(descriptor, group, read_only=read_only, step=walk.step)
    finally:
        os.close(descriptor)


def own_tree(
    root: int, group: int | None, *, read_only: bool, step: Callable[[], object] = lambda: None
) -> None:
    """Give an open directory to a group, with all below it and before it; None: leave it.

    `step` is called for each file and directory.

    Raises OSError: ESTALE where a directory was moved elsewhere meanwhile.
    """
    if group is None:
        return
    levels = [_Level(os.fstat(root), _own_files(root, group, step, read_only=read_only))]
    here = os.dup(root)
    try:
        while levels:
            below = _enter(here, levels[-1])
            if below is not None:
                os.close(here)
                here = below
                names = _own_files(here, group, step, read_only=read_only)
                levels.append(_Level(os.fstat(here), names))
                continue
            own_entry(here, group, read_only=read_only)
            step()
            levels.pop()
            if levels:
                above = _leave(here, levels[-1])
                os.close(here)
                here = above
    finally:
        os.close(here)


def own_entry(descriptor: int, group: int | None, *, read_only: bool) -> None:
    """Give one open file or directory to a group; None leaves it as it is. Raises OSError."""
    if group is None:
        return
    found = os.fstat(descriptor)
    # By way of /proc, for an O_PATH descriptor; what it leads to cannot be swapped any more.
    place = f"/proc/self/fd/{descriptor}"
    os.chown(place, -1, group)
    wanted = _wanted(is_directory=stat.S_ISDIR(found.st_mode), read_only=read_only)
    os.chmod(place, stat.S_IMODE(found.st_mode) | wanted)


@dataclass(slots=True)
class _Level:
    """A directory on the way down, and those of its directories that are still to be entered."""

    found: os.stat_result
    directories: list[str]


def _enter(here: int, level: _Level) -> int | None:
    """Open the next directory of a level; None where there is none left. Raises OSError."""
    while level.directories:
        try:
            return open_directory(level.directories.pop(), directory=here)
        except (FileNotFoundError, NotADirectoryError):
            continue  # whoever uses the volume as well took it away
    return None


def _leave(here: int, level: _Level) -> int:
    above = open_directory("..", directory=here)
    if os.path.samestat(os.fstat(above), level.found):
        return above
    os.close(above)
    raise OSError(errno.ESTALE, "a directory was moved while its group was being changed")


def _own_files(
    directory: int, group: int, step: Callable[[], object], *, read_only: bool
) -> list[str]:
    """Own what is in a directory and is none itself; return the directories."""
    directories: list[str] = []
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                directories.append(entry.name)
            else:
                _own_file(entry.name, group, directory, read_only=read_only)
                step()
    return directories


def _is_right(found: os.stat_result, group: int, *, read_only: bool) -> bool:
    wanted = _wanted(is_directory=stat.S_ISDIR(found.st_mode), read_only=read_only)
    return found.st_gid == group and stat.S_IMODE(found.st_mode) & wanted == wanted


def _wanted(*, is_directory: bool, read_only: bool) -> int:
    bits = _READ_ONLY if read_only else _READ_WRITE
    return bits | stat.S_ISGID | _SEARCH if is_directory else bits


def _own_file(name: str, group: int, directory: int, *, read_only: bool) -> None:
    """Own a file or a link; a directory that has come in its place has had its turn."""
    try:
        descriptor = os.open(name, _OPEN, dir_fd=directory)
    except FileNotFoundError:
        return  # whoever uses the volume as well took it away
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISLNK(mode):
            os.chown(name, -1, group, dir_fd=directory, follow_symlinks=False)
        elif not stat.S_ISDIR(mode):
            own_entry(descriptor, group, read_only=read_only)
    finally:
        os.close(descriptor)
