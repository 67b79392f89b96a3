"""Being told of changes to files: the seam, and inotify behind it.

A watch belongs to an inode and not to a path. So whoever looks at the paths hands in the
places to watch at every look, and a directory that was replaced gets its watch then; what
changed between the look and the watch is seen by looking once more (see `watch`).
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, Protocol

import trio

from kubelet_trio.model import get_logger
from kubelet_trio.sources.scan import WatchPoints

if TYPE_CHECKING:
    from inotify_simple import Event

log = get_logger()


class Change(NamedTuple):
    """Something happened at a path. "": somewhere."""

    path: str
    finished: bool  # whoever did it is done: a file closed after writing, or renamed into place
    removed: bool = False  # unlinked, and not renamed away


class Watcher(Protocol):
    """Tells of changes. Losing one costs time only: everything is looked at again anyway."""

    def watch(self, points: WatchPoints) -> bool:
        """Watch these places and no others. True: some of them only from now on, look again."""
        ...

    async def wait_changes(self) -> list[Change]:
        """Return changes, waiting for one. Cancelled, it loses none."""
        ...

    def close(self) -> None: ...


class NoWatcher:
    """Stands in where the kernel has no watch to give: nothing is told, everything polled."""

    def watch(self, points: WatchPoints) -> bool:
        return False

    async def wait_changes(self) -> list[Change]:
        await trio.sleep_forever()
        raise AssertionError("unreachable")

    def close(self) -> None:
        pass


class InotifyWatcher:
    """inotify. Raises OSError when made where the machine's instances are used up."""

    def __init__(self) -> None:
        from inotify_simple import INotify, flags

        self._flags = flags
        self._mask = (
            flags.CLOSE_WRITE
            | flags.MOVED_TO
            | flags.MOVED_FROM
            | flags.CREATE  # links, which nobody closes
            | flags.DELETE
            | flags.ATTRIB  # a chmod may make readable
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
                fresh[path] = self._inotify.add_watch(path, self._mask)
            except OSError as exc:
                if exc.errno not in (errno.ENOENT, errno.ENOTDIR):  # it went: look again
                    failed.add(path)
                    if path not in self._failed:
                        log.warning("source.watch_failed", path=path, error=exc.strerror)
        for wd in set(self._by_path.values()) - set(fresh.values()):
            with suppress(OSError):  # went with its directory
                self._inotify.rm_watch(wd)
        changed = any(self._by_path.get(path) != wd for path, wd in fresh.items())
        self._by_path, self._points, self._failed = fresh, dict(points), frozenset(failed)
        return changed

    async def wait_changes(self) -> list[Change]:
        while True:
            await trio.lowlevel.wait_readable(self._inotify.fileno())
            changes = [c for event in self._inotify.read(timeout=0) for c in self._changes(event)]
            if changes:
                return changes

    def _changes(self, event: Event) -> list[Change]:
        gone = self._flags.IGNORED | self._flags.DELETE_SELF | self._flags.MOVE_SELF
        if event.mask & (self._flags.Q_OVERFLOW | gone):
            if event.mask & self._flags.IGNORED:
                self._by_path = {p: wd for p, wd in self._by_path.items() if wd != event.wd}
            return [Change("", False)]
        finished = bool(event.mask & self._finished)
        removed = bool(event.mask & self._flags.DELETE)
        return [
            Change(os.path.join(directory, event.name), finished, removed)
            for directory, wd in self._by_path.items()
            if wd == event.wd and self._matters(directory, event.name)
        ]

    def _matters(self, directory: str, name: str) -> bool:
        names = self._points.get(directory, frozenset())
        return names is None or name in names

    def close(self) -> None:
        self._inotify.close()


def open_watcher() -> Watcher:
    """Return a watcher by inotify, or one that never tells anything if there is none to have."""
    try:
        return InotifyWatcher()
    except OSError as exc:
        log.warning("source.no_inotify", error=str(exc))
        return NoWatcher()
