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

_COPY = 1 << 20  # bytes at a time
_LEVEL = 6  # gzip's own default, and the Go kubelet's


def log_sizes(paths: Iterable[str]) -> Mapping[str, int | None]:
    """Return the size of each file; None where there is none. Others raise OSError."""
    sizes: dict[str, int | None] = {}
    for path in paths:
        try:
            sizes[path] = os.stat(path).st_size
        except FileNotFoundError:
            sizes[path] = None
    return sizes


def make_room(log: Path, max_files: int) -> None:
    """Remove what is surplus, and compress what was rotated before. Raises OSError."""
    plan = plan_rotation(log.name, os.listdir(log.parent), max_files)
    for name in plan.remove:
        (log.parent / name).unlink(missing_ok=True)
    for name in plan.compress:
        compress(log.parent / name)


def compress(log: Path) -> None:
    """Put a compressed file in the place of a log, complete or not at all. Raises OSError."""
    import gzip  # only a node whose logs are rotated needs it

    temporary = log.with_name(log.name + TEMPORARY)
    try:
        with log.open("rb") as source, temporary.open("wb") as target:
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
