"""Finds the sockets of the registry once: blocking, stateless.

Plugins' pods write to the directory. Links are not followed, and the work of one scan is bounded
whatever the directory has.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from kubelet_trio.model import WatchPoints

DIRECTORY_MODE = 0o750  # setupDataDirs in pkg/kubelet/kubelet.go
MOST_SOCKETS = 256
_MOST_ENTRIES = 10_000
_DEEPEST = 8  # directories below the registry


class SocketIdentity(NamedTuple):
    """Changes when another socket is at a path; the order is that of their creation."""

    mtime_ns: int  # a socket's own: connecting and chmod(2) leave it alone
    inode: int
    device: int


@dataclass(frozen=True, slots=True)
class RegistryListing:
    """The result of one scan. Sockets are named by their path below the registry."""

    sockets: Mapping[str, SocketIdentity] = field(default_factory=dict)
    watch: WatchPoints = field(default_factory=dict)
    problem: str = ""  # why new sockets may be missing; known ones are always right


def scan_registry(root: str, known: Mapping[str, SocketIdentity]) -> RegistryListing:
    """List the sockets below a directory; create the directory if it is missing.

    Args:
        root: the directory.
        known: the sockets of the scan before. A flood of new ones does not push them out.
    """
    walk = _Walk(root)
    try:
        os.mkdir(root, DIRECTORY_MODE)
    except FileExistsError:
        pass
    except OSError as exc:
        walk.problem = f"cannot be created: {exc.strerror}"
    for name, identity in known.items():
        walk.look(name, identity)
    walk.descend()
    return RegistryListing(walk.sockets, walk.watch, walk.problem)


class _Walk:
    """One scan in progress."""

    def __init__(self, root: str) -> None:
        self.sockets: dict[str, SocketIdentity] = {}
        self.watch: dict[str, frozenset[str] | None] = {}
        self.problem = ""
        self._root = root
        self._entries = 0

    def look(self, name: str, known: SocketIdentity) -> None:
        """Add the socket of this name, unless it is gone."""
        try:
            self._add(name, os.lstat(os.path.join(self._root, name)))
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as exc:  # a disk that fails says nothing about its sockets
            self.problem = f"cannot be read: {exc.strerror}"
            self.sockets[name] = known

    def descend(self) -> None:
        """Add all sockets, breadth first: a deep tree does not hide those near the root."""
        level = [""]
        for _ in range(_DEEPEST + 1):
            level = [below for directory in level for below in self._list(directory)]
        if level:
            self.problem = f"has directories more than {_DEEPEST} deep, which are ignored"

    def _list(self, directory: str) -> list[str]:
        """Add the sockets in a directory; return its directories."""
        path, below = os.path.join(self._root, directory).rstrip("/"), []
        self.watch[path] = None
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    self._entries += 1
                    if self._entries > _MOST_ENTRIES:
                        self.problem = f"has more than {_MOST_ENTRIES} entries; the rest is ignored"
                        break
                    # Hidden names are ignored upstream; no plugin has one that is not printable.
                    if entry.name.startswith(".") or not entry.name.isprintable():
                        continue
                    name = os.path.join(directory, entry.name)
                    if entry.is_dir(follow_symlinks=False):
                        below.append(name)
                    else:
                        self._take(name, entry)
        except FileNotFoundError:
            self.problem = self.problem or ("" if directory else "does not exist")
        except OSError as exc:
            self.problem = f"cannot be read: {path}: {exc.strerror}"
        return below

    def _take(self, name: str, entry: os.DirEntry[str]) -> None:
        try:
            self._add(name, entry.stat(follow_symlinks=False))
        except FileNotFoundError:
            return  # removed since the directory was read

    def _add(self, name: str, found: os.stat_result) -> None:
        if not stat.S_ISSOCK(found.st_mode):
            return
        if name not in self.sockets and len(self.sockets) >= MOST_SOCKETS:
            self.problem = f"has more than {MOST_SOCKETS} sockets; the rest is ignored"
            return
        self.sockets[name] = SocketIdentity(found.st_mtime_ns, found.st_ino, found.st_dev)
