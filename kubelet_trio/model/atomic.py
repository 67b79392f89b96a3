"""Writes files atomically: a reader, or the agent after a crash, never sees a part of one."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

# O_EXCL and O_NOFOLLOW: never write through a link that another party has put there.
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def write_aside(
    path: Path | str,
    data: bytes,
    *,
    mode: int = 0o600,
    sync: bool = False,
    directory: int | None = None,
) -> None:
    """Write a file as `.<name>.new`, and rename it to `<name>`. Blocks.

    Args:
        path: the file; relative to `directory` if that is given.
        data: all of its content.
        mode: its permissions, less the umask.
        sync: whether the content must survive a power cut: it is on disk before the rename.
            The rename itself survives only after `sync_directory`.
        directory: a descriptor of its directory.

    Raises OSError; the file is then as it was before.
    """
    fresh = unfinished(path)
    try:
        descriptor = os.open(fresh, _FLAGS, mode, dir_fd=directory)
    except FileExistsError:
        # The agent died before the rename. Created anew, because an existing file keeps its mode.
        os.unlink(fresh, dir_fd=directory)
        descriptor = os.open(fresh, _FLAGS, mode, dir_fd=directory)
    try:
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            if sync:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(fresh, path, src_dir_fd=directory, dst_dir_fd=directory)
    except OSError:
        with contextlib.suppress(OSError):  # the first failure says why
            os.unlink(fresh, dir_fd=directory)
        raise


def unfinished(path: Path | str) -> str:
    """Return where `write_aside` writes a file first: what an agent that dies then leaves."""
    parent, name = os.path.split(path)
    return os.path.join(parent, f".{name}.new")  # may be relative to a descriptor


def remove_written(path: Path) -> None:
    """Remove a file of `write_aside`, and what an unfinished write of it has left.

    Idempotent. Blocks; raises OSError.
    """
    Path(unfinished(path)).unlink(missing_ok=True)
    path.unlink(missing_ok=True)


def sync_directory(path: Path) -> None:
    """Make the renames and removals in a directory durable (fsync(2)). Blocks; raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
