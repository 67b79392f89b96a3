"""The files of one log on disk: sizes, removal, compression, renaming. Everything blocks.

Each step leaves a state that the next round understands, whenever the agent dies. Pods that
collect logs may write here: no link is followed, and the log's directory is opened once for each
step, so that what is renamed, removed or made lies in it.
"""

from __future__ import annotations

import datetime
import errno
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from kubelet_trio.containers import OWN_DIRECTORY, OWN_LOG
from kubelet_trio.gc.log_plan import COMPRESSED, TEMPORARY, plan_rotation, rotated_name
from kubelet_trio.model import next_data, open_directory, open_regular, stat_own

_COPY = 1 << 20  # bytes at a time
_LEVEL = 6  # gzip's own default, and the Go kubelet's


def log_sizes(paths: Iterable[str]) -> Mapping[str, int | OSError | None]:
    """Return the size of each file, None where there is none, or why it cannot be told."""
    sizes: dict[str, int | OSError | None] = {}
    for path in paths:
        try:
            found = stat_own(path, own=OWN_LOG)
            if stat.S_ISLNK(found.st_mode):
                sizes[path] = 0  # one of Docker's, which rotates its logs itself
                continue
            if not stat.S_ISREG(found.st_mode):
                raise OSError(errno.EINVAL, "expected a log, which is a file", path)
            sizes[path] = found.st_size
        except FileNotFoundError:
            sizes[path] = None
        except OSError as exc:
            sizes[path] = exc
    return sizes


def make_room(log: Path, max_files: int) -> list[OSError]:
    """Remove what is surplus, and compress what was rotated before.

    Returns what failed: one file that cannot be removed or compressed keeps no log from being
    rotated. Raises OSError where the directory cannot be listed.
    """
    failed: list[OSError] = []
    with _directory(log) as directory:
        plan = plan_rotation(log.name, os.listdir(directory), max_files)
        for name in plan.remove:
            try:
                _remove(name, directory)
            except OSError as exc:
                failed.append(exc)
        for name in plan.compress:
            try:
                _compress(name, directory)
            except OSError as exc:
                failed.append(exc)
    return failed


def compress(log: Path) -> None:
    """Put a compressed file in the place of a log, complete or not at all. Raises OSError."""
    with _directory(log) as directory:
        _compress(log.name, directory)


def _compress(name: str, directory: int) -> None:
    import gzip  # only a node whose logs are rotated needs it

    temporary = name + TEMPORARY
    with (
        open(open_regular(name, directory=directory), "rb") as source,
        open(_create(temporary, directory), "wb") as target,
    ):
        try:
            os.fchmod(target.fileno(), os.fstat(source.fileno()).st_mode & 0o7777)
            with gzip.GzipFile(name, "wb", _LEVEL, target) as packed:
                for part in _data(source.fileno()):
                    packed.write(part)
            target.flush()
            # The original goes next: not before its content is sure to be on disk.
            os.fsync(target.fileno())
            _rename(temporary, name + COMPRESSED, directory)
        finally:
            with suppress(OSError):
                _remove(temporary, directory)
    os.unlink(name, dir_fd=directory)


def set_aside(log: Path, now: datetime.datetime) -> Path:
    """Rename the latest log, and return its new path. The container still writes to it."""
    with _directory(log) as directory:
        rotated = rotated_name(log.name, os.listdir(directory), now)
        _rename(log.name, rotated, directory)
    return log.with_name(rotated)


def put_back(rotated: Path, log: Path) -> None:
    """Undo `set_aside`, unless a new log is there: then the runtime did as it was asked."""
    with _directory(log) as directory, suppress(FileExistsError):
        os.link(
            rotated.name,
            log.name,
            src_dir_fd=directory,
            dst_dir_fd=directory,
            follow_symlinks=False,
        )
        os.unlink(rotated.name, dir_fd=directory)


def _data(source: int) -> Iterator[bytes]:
    """Yield what is in a file, holes left out: packing a terabyte of nothing takes hours."""
    while part := os.read(source, _COPY):
        yield part
        if not any(part):
            here = os.lseek(source, 0, os.SEEK_CUR)
            os.lseek(source, next_data(source, here), os.SEEK_SET)


@contextmanager
def _directory(log: Path) -> Iterator[int]:
    descriptor = open_directory(log.parent, own=OWN_DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _create(name: str, directory: int) -> int:
    """Create a file that was not there; a link, which may lead to a file of the host, is there."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(name, flags, 0o600, dir_fd=directory)


def _remove(name: str, directory: int) -> None:
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=directory)


def _rename(name: str, new: str, directory: int) -> None:
    os.rename(name, new, src_dir_fd=directory, dst_dir_fd=directory)
