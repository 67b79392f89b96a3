"""Removes directory trees without ever entering a mount point inside them.

The Go kubelet once deleted data by walking into a live mount
(https://github.com/kubernetes/kubernetes/issues/60987). Here the kernel prevents that: a
directory is renamed before it is entered, and a mount point cannot be renamed (EBUSY). Each
subdirectory moves up to the top of the tree, so memory, open files and path lengths stay constant
however deep a container nests its directories. Symbolic links are removed, never followed.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path

_MOVED = ".kubelet-trio-removing-"
_BATCH = 1000  # entries held in memory at a time
_ALL = 0o700
_LOOK = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(root: Path) -> None:
    """Remove a directory tree; a missing one is no error.

    Others may remove files of it at the same time, as the garbage collection of logs does. The
    caller makes sure that `root` itself is not a mount point. Raises OSError: EBUSY for a mount
    point below it, whose content stays untouched.
    """
    try:
        top = _open(root)
    except FileNotFoundError:
        return
    try:
        _empty(top)
    finally:
        os.close(top)
    with suppress(FileNotFoundError):
        root.rmdir()


def remove_entry(name: str, directory: int, most: int = 100_000) -> None:
    """Remove an entry of an open directory: a file, a link, or a directory with its tree.

    Safe while a container still writes. Raises OSError: FileNotFoundError, and EBUSY after `most`
    entries: a container that keeps adding some must not block the caller for ever.
    """
    # No check of the type first: a container could replace the entry in between.
    try:
        os.unlink(name, dir_fd=directory)
        return
    except IsADirectoryError:
        pass
    # It was a directory; `_open` refuses to follow a link that replaced it meanwhile.
    top = _open(name, directory)
    try:
        _empty(top, most)
    finally:
        os.close(top)
    os.rmdir(name, dir_fd=directory)


def remove_empty(directory: Path) -> None:
    """Remove a directory if it is empty or missing. Raises OSError."""
    try:
        directory.rmdir()
    except FileNotFoundError:
        return
    except OSError:
        if not any(directory.iterdir()):
            raise


def _empty(top: int, most: float = float("inf")) -> None:
    fresh, left = _fresh_names(top), _Budget(most)

    def flatten(name: str) -> None:
        moved = next(fresh)
        os.rename(name, moved, src_dir_fd=top, dst_dir_fd=top)  # EBUSY: a mount point
        _flatten(top, moved, fresh, left)

    _remove_all(top, flatten, left)


def _remove_all(directory: int, on_directory: Callable[[str], None], left: _Budget) -> None:
    """Remove a directory's entries; `on_directory` takes those that are directories away."""
    gone: set[str] = set()
    while entries := _entries(directory):
        for name, is_directory in entries:
            left.take()
            try:
                if is_directory:
                    on_directory(name)
                else:
                    os.unlink(name, dir_fd=directory)
            except FileNotFoundError:
                # Somebody else was faster. A file system that goes on listing it is broken.
                if name in gone:
                    raise
                gone.add(name)


@dataclass(slots=True)
class _Budget:
    """The number of entries that may still be removed."""

    left: float

    def take(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise OSError(errno.EBUSY, "too many entries to remove in one call")


def _flatten(top: int, name: str, fresh: Iterator[str], left: _Budget) -> None:
    """Remove a directory; its subdirectories move up to `top`, and are removed next."""
    directory = _open(name, top)
    try:
        _remove_all(directory, lambda entry: _move(entry, directory, next(fresh), top), left)
    finally:
        os.close(directory)
    os.rmdir(name, dir_fd=top)


def _move(name: str, source: int, new: str, target: int) -> None:
    try:
        os.rename(name, new, src_dir_fd=source, dst_dir_fd=target)
    # Moving a directory changes its `..` entry, which needs write permission on it (rename(2)).
    except PermissionError:
        os.close(_open(name, source))
        os.rename(name, new, src_dir_fd=source, dst_dir_fd=target)


def _open(path: str | Path, parent: int | None = None) -> int:
    """Open a directory with permissions to remove its entries. Never follows a link."""
    try:
        opened = os.open(path, _OPEN_DIRECTORY, dir_fd=parent)
    # An agent without root shares its user with the containers, which may have set mode 000.
    except PermissionError:
        looked = os.open(path, _LOOK, dir_fd=parent)
        try:
            # fchmod(2) refuses O_PATH descriptors; the path in /proc cannot be replaced by a link.
            os.chmod(f"/proc/self/fd/{looked}", _ALL)
        finally:
            os.close(looked)
        opened = os.open(path, _OPEN_DIRECTORY, dir_fd=parent)
    found = os.fstat(opened)
    if found.st_mode & _ALL != _ALL and found.st_uid == os.geteuid():
        os.fchmod(opened, _ALL)
    return opened


def _entries(directory: int) -> list[tuple[str, bool]]:
    """Return a batch of a directory's entries, and whether each is a directory."""
    with os.scandir(directory) as scan:
        return [(e.name, e.is_dir(follow_symlinks=False)) for e in islice(scan, _BATCH)]


def _fresh_names(top: int) -> Iterator[str]:
    """Yield unused names in `top`; an interrupted removal may have left some."""
    for number in count():
        name = f"{_MOVED}{number}"
        try:
            os.stat(name, dir_fd=top, follow_symlinks=False)
        except FileNotFoundError:
            yield name
