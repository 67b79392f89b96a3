"""Notifications of file changes: the seam, and inotify behind it.

An inotify watch belongs to an inode, not to a path. The user therefore passes the places to
watch after every scan, and a directory that was replaced gets a new watch then. `watch` returns
True in that case: a scan after it finds changes that came between.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, Protocol

import trio

from kubelet_trio.model.logger import get_logger

if TYPE_CHECKING:
    from inotify_simple import Event

log = get_logger()

# Directory to the names in it to watch; None: all of them.
WatchPoints = Mapping[str, frozenset[str] | None]


class FileChange(NamedTuple):
    """A change at a path; "" if the path is not known."""

    path: str
    finished: bool  # completely written: closed after writing, or renamed into place
    removed: bool = False  # unlinked, and not renamed away
    moved: bool = False  # renamed into place


class Watcher(Protocol):
    """Reports changes of files. A lost one only delays: the user scans regularly anyway."""

    def watch(self, points: WatchPoints) -> bool:
        """Watch these places and no others; return whether a watch is new: then scan again."""
        ...

    async def wait_changes(self) -> list[FileChange]:
        """Wait for a change and return those so far. No change is lost if it is cancelled."""
        ...

    def close(self) -> None: ...


class NoWatcher:
    """A watcher that reports nothing, for hosts without a free inotify instance: poll."""

    def watch(self, points: WatchPoints) -> bool:
        return False

    async def wait_changes(self) -> list[FileChange]:
        await trio.sleep_forever()
        raise AssertionError("unreachable")

    def close(self) -> None:
        pass


class InotifyWatcher:
    """A watcher on inotify. The constructor raises OSError if no instance is free."""

    def __init__(self) -> None:
        from inotify_simple import INotify, flags

        self._flags = flags
        self._mask = (
            flags.CLOSE_WRITE
            | flags.MOVED_TO
            | flags.MOVED_FROM
            | flags.CREATE  # for links: they are created, never closed
            | flags.DELETE
            | flags.ATTRIB  # chmod(1) may make a file readable
            | flags.DELETE_SELF
            | flags.MOVE_SELF
            | flags.ONLYDIR
        )
        self._finished = flags.CLOSE_WRITE | flags.MOVED_TO
        self._inotify = INotify(nonblocking=True)
        self._by_path: dict[str, int] = {}
        self._points: WatchPoints = {}
        self._failed: frozenset[str] = frozenset()

    def watch(self, points: WatchPoints) -> bool:
        fresh: dict[str, int] = {}
        failed = set()
        for path in points:
            try:
                # For an inode that is watched already, this returns the same descriptor.
                fresh[path] = self._inotify.add_watch(path, self._mask)
            except OSError as exc:
                # ENOENT, ENOTDIR: the directory was replaced since the scan; the next one sees it.
                if exc.errno not in (errno.ENOENT, errno.ENOTDIR):
                    failed.add(path)
                    if path not in self._failed:
                        log.warning("files.watch_failed", path=path, error=exc.strerror)
        # Two paths may share a watch descriptor: inotify has one per inode.
        for wd in set(self._by_path.values()) - set(fresh.values()):
            with suppress(OSError):  # the kernel removed it together with its directory
                self._inotify.rm_watch(wd)
        is_new = any(self._by_path.get(path) != wd for path, wd in fresh.items())
        self._by_path, self._points, self._failed = fresh, dict(points), frozenset(failed)
        return is_new

    async def wait_changes(self) -> list[FileChange]:
        while True:
            await trio.lowlevel.wait_readable(self._inotify.fileno())
            changes = [c for event in self._inotify.read(timeout=0) for c in self._changes(event)]
            if changes:
                return changes

    def _changes(self, event: Event) -> list[FileChange]:
        gone = self._flags.IGNORED | self._flags.DELETE_SELF | self._flags.MOVE_SELF
        # After Q_OVERFLOW events are lost, and the paths of a moved directory are wrong.
        if event.mask & (self._flags.Q_OVERFLOW | gone):
            if event.mask & self._flags.IGNORED:
                self._by_path = {p: wd for p, wd in self._by_path.items() if wd != event.wd}
            return [FileChange("", False)]
        finished = bool(event.mask & self._finished)
        removed = bool(event.mask & self._flags.DELETE)
        moved = bool(event.mask & self._flags.MOVED_TO)
        return [
            FileChange(os.path.join(directory, event.name), finished, removed, moved)
            for directory, wd in self._by_path.items()
            if wd == event.wd and self._is_watched(directory, event.name)
        ]

    def _is_watched(self, directory: str, name: str) -> bool:
        names = self._points.get(directory, frozenset())
        return names is None or name in names

    def close(self) -> None:
        self._inotify.close()


def open_watcher() -> Watcher:
    """Return an inotify watcher, or `NoWatcher` if no instance is free."""
    try:
        return InotifyWatcher()
    except OSError as exc:
        log.warning("files.no_inotify", error=str(exc))
        return NoWatcher()
