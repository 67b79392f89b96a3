"""`--lock-file`: one kubelet at a time, and a bootstrap one that makes way for the next.

Waiting for a taken lock opens the file, which is what `--exit-on-lock-contention` in the one
that has it looks for: it ends, and the one that waits goes on.

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

_LOOK = 0.2  # seconds between two tries: a thread that blocks in flock could not be cancelled


@contextlib.asynccontextmanager
async def lock_file(path: Path) -> AsyncIterator[None]:
    """Hold an exclusive lock on a file, made if it is not there; waits while it is taken.

    Raises OSError, naming the file, where it cannot be opened.
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
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class Contention:
    """Tells when somebody opens or deletes a file from now on.

    Raises OSError when made where the file cannot be watched.
    """

    def __init__(self, path: Path) -> None:
        from inotify_simple import INotify, flags

        self._path = path
        self._inode = os.stat(path).st_ino
        self._open = flags.OPEN
        self._inotify: INotify = INotify(nonblocking=True)
        try:
            # DELETE_SELF would come only once nobody has the file open, and we have.
            self._inotify.add_watch(str(path), flags.OPEN | flags.ATTRIB | flags.MOVE_SELF)
        except OSError:
            self._inotify.close()
            raise

    async def wait(self) -> None:
        """Return once it has happened."""
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
