"""Disk usage of a directory tree that a container keeps changing.

The walk uses descriptors: it follows no link, even if a directory is replaced by one meanwhile,
and depth and path length do not matter. It holds two descriptors, and the remaining names of each
level above. It returns by `..`; if that is another directory by now, it starts again from the top,
and a directory that was moved elsewhere is not counted.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kubelet_trio.model.foreign import open_directory

_LOOK_AT_CLOCK = 1000  # files
_OWN = 2  # components that a container may have replaced: a pod's log directory, and its own
_MOST_LINKED = 1_000_000  # hard-linked files that are remembered


@dataclass(frozen=True, slots=True)
class TreeCount:
    """The disk usage of a directory tree."""

    space: int = 0  # bytes
    inodes: int = 0
    is_complete: bool = True  # False: `is_over` ended the count


def count_tree(
    path: str, is_over: Callable[[], bool] = lambda: False, *, cross: bool = False
) -> TreeCount:
    """Return the disk usage below a directory; zero if it cannot be opened. Blocks.

    Files that are removed meanwhile do not count. A hard-linked file counts once. To bound the
    agent's memory this holds for the first million of them; after that every name counts.

    Args:
        path: the directory; a link is not followed.
        is_over: checked regularly; once it returns True, the count so far is returned.
        cross: whether to count other file systems mounted below, too.
    """
    try:
        top = open_directory(path, own=_OWN)
    except OSError:
        return TreeCount()
    try:
        found = os.fstat(top)
        space = inodes = 0
        linked: set[tuple[int, int]] = set()
        walk = _Walk(top, None if cross else found.st_dev)
        for step, entry in enumerate(walk.entries()):
            if (entry is None or step % _LOOK_AT_CLOCK == 0) and is_over():
                return TreeCount(space, inodes, is_complete=False)
            if entry is None:
                continue
            if entry.st_nlink > 1 and not stat.S_ISDIR(entry.st_mode):
                identity = (entry.st_dev, entry.st_ino)
                if identity in linked:
                    continue
                if len(linked) < _MOST_LINKED:
                    linked.add(identity)
            space += entry.st_blocks * 512  # st_blocks is in 512-byte units on every file system
            inodes += 1
        return TreeCount(space, inodes)
    finally:
        os.close(top)


@dataclass(slots=True)
class _Level:
    """A directory on the current path, and its subdirectories that are still to be entered."""

    name: str
    found: os.stat_result
    left: list[str]


class _Walk:
    """Walks a tree by descriptors; only on the file system `device`, unless it is None."""

    def __init__(self, top: int, device: int | None) -> None:
        self._top = top
        self._device = device
        self._here = os.dup(top)
        self._levels = [_Level("", os.fstat(top), [])]

    def entries(self) -> Iterator[os.stat_result | None]:
        """Yield every entry below the top, and None after each directory."""
        try:
            yield from self._list()
            while self._levels:
                if not self._levels[-1].left:
                    self._leave()
                    yield None
                else:
                    has_entered = self._enter(self._levels[-1].left.pop())
                    yield None
                    if has_entered:
                        yield from self._list()
        finally:
            os.close(self._here)

    def _list(self) -> Iterator[os.stat_result]:
        left = self._levels[-1].left
        try:
            with os.scandir(self._here) as scan:
                for entry in scan:
                    try:
                        found = entry.stat(follow_symlinks=False)
                    # Removed since the directory was read.
                    except OSError:
                        continue
                    # A mount point: its space is on another file system (as du -x).
                    if self._device is not None and found.st_dev != self._device:
                        continue
                    if stat.S_ISDIR(found.st_mode):
                        left.append(entry.name)
                    yield found
        except OSError:  # not readable, or an I/O error
            return

    def _enter(self, name: str) -> bool:
        try:
            below = open_directory(name, directory=self._here)
        except OSError:
            return False
        found = os.fstat(below)
        # Again: it may have become a mount point since it was listed.
        if self._device is not None and found.st_dev != self._device:
            os.close(below)
            return False
        self._go(below)
        self._levels.append(_Level(name, found, []))
        return True

    def _leave(self) -> None:
        self._levels.pop()
        if not self._levels:
            return
        try:
            above = open_directory("..", directory=self._here)
        except OSError:
            self._find()
            return
        # `..` is another directory if this one was moved.
        if os.path.samestat(os.fstat(above), self._levels[-1].found):
            self._go(above)
        else:
            os.close(above)
            self._find()

    def _find(self) -> None:
        """Go down from the top to the last level, or as far as the path still exists."""
        self._go(os.dup(self._top))
        for depth, level in enumerate(self._levels[1:], start=1):
            try:
                below = open_directory(level.name, directory=self._here)
            except OSError:
                del self._levels[depth:]
                return
            if not os.path.samestat(os.fstat(below), level.found):
                os.close(below)
                del self._levels[depth:]
                return
            self._go(below)

    def _go(self, descriptor: int) -> None:
        os.close(self._here)
        self._here = descriptor
