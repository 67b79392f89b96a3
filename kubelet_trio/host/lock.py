"""`--lock-file`: one kubelet at a time; a bootstrap kubelet exits when its successor starts.

A kubelet that waits for the lock opens the file. With `--exit-on-lock-contention` the kubelet that
holds the lock watches for that, and exits.

Source: run in cmd/kubelet/app/server.go, pkg/util/flock and watchForLockfileContention.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import AsyncIterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import trio

from kubelet_trio.model import get_logger

if TYPE_CHECKING:
    from inotify_simple import INotify

log = get_logger()

# Seconds between attempts: a thread that blocks in flock(2) could not be cancelled.
_LOOK = 0.2


@contextlib.asynccontextmanager
async def lock_file(path: Path) -> AsyncIterator[None]:
    """Wait for an exclusive lock on a file, and hold it. Creates the file if it is missing.

    Raises OSError with the file's name if it cannot be opened.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        waits = False
        while not _try_lock(descriptor):
            if not waits:
                log.info("lock_file.waiting", path=str(path))
            waits = True
            await trio.sleep(_LOOK)
        yield
    finally:
        # Not unlinked: another kubelet may wait for the lock of this very file.
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class Contention:
    """Watches a file from now on: another process opens, replaces or deletes it.

    The constructor raises OSError if the file cannot be watched.
    """

    def __init__(self, path: Path) -> None:
        from inotify_simple import INotify, flags

        self._path = path
        self._inode = os.stat(path).st_ino
        self._open = flags.OPEN
        self._inotify: INotify = INotify(nonblocking=True)
        try:
            # DELETE_SELF would come only after the last close (inotify(7)), and this process holds
            # the file open. unlink(2) changes the link count, which is ATTRIB.
            self._inotify.add_watch(str(path), flags.OPEN | flags.ATTRIB | flags.MOVE_SELF)
        except OSError:
            self._inotify.close()
            raise

    async def wait(self) -> None:
        """Wait for the first such event."""
        while True:
            await trio.lowlevel.wait_readable(self._inotify.fileno())
            opened = [e for e in self._inotify.read(timeout=0) if e.mask & self._open]
            if opened or self._is_gone():
                return

    def _is_gone(self) -> bool:
        try:
            return os.stat(self._path).st_ino != self._inode
        except OSError:
            return True

    def __enter__(self) -> Contention:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._inotify.close()
