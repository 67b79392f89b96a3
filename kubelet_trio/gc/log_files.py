"""The files of one log on disk: sizes, removal, compression, renaming. Everything blocks.

Each step leaves a state that the next round understands, whenever the agent dies.
"""

from __future__ import annotations

import datetime
import os
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from kubelet_trio.gc.log_plan import COMPRESSED, TEMPORARY, plan_rotation, rotated_name
from kubelet_trio.model import open_regular

_COPY = 1 << 20  # bytes at a time
_LEVEL = 6  # gzip's own default, and the Go kubelet's


def log_sizes(paths: Iterable[str]) -> Mapping[str, int | OSError | None]:
    """Return the size of each file, None where there is none, or why it cannot be told."""
    sizes: dict[str, int | OSError | None] = {}
    for path in paths:
        try:
            sizes[path] = os.stat(path).st_size
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
    plan = plan_rotation(log.name, os.listdir(log.parent), max_files)
    failed: list[OSError] = []
    for name in plan.remove:
        try:
            (log.parent / name).unlink(missing_ok=True)
        except OSError as exc:
            failed.append(exc)
    for name in plan.compress:
        try:
            compress(log.parent / name)
        except OSError as exc:
            failed.append(exc)
    return failed


def _create(path: Path) -> int:
    """Create a file that was not there; a link, which may lead to a file of the host, is there."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def compress(log: Path) -> None:
    """Put a compressed file in the place of a log, complete or not at all. Raises OSError.

    Pods that collect logs may write to the directory: neither end is followed where it is a link.
    """
    import gzip  # only a node whose logs are rotated needs it

    temporary = log.with_name(log.name + TEMPORARY)
    with open(open_regular(log), "rb") as source, open(_create(temporary), "wb") as target:
        try:
            os.fchmod(target.fileno(), os.fstat(source.fileno()).st_mode & 0o7777)
            with gzip.GzipFile(log.name, "wb", _LEVEL, target) as packed:
                shutil.copyfileobj(source, packed, _COPY)
            target.flush()
            # The original goes next: not before its content is sure to be on disk.
            os.fsync(target.fileno())
            temporary.rename(log.with_name(log.name + COMPRESSED))
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
    log.unlink()


def set_aside(log: Path, now: datetime.datetime) -> Path:
    """Rename the latest log, and return its new path. The container still writes to it."""
    rotated = log.with_name(rotated_name(log.name, os.listdir(log.parent), now))
    log.rename(rotated)
    return rotated


def put_back(rotated: Path, log: Path) -> None:
    """Undo `set_aside`, unless a new log is there: then the runtime did as it was asked."""
    with suppress(FileExistsError):
        os.link(rotated, log)
        rotated.unlink()
