"""Files that a reader, or the next life of the agent, finds whole or not at all."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def write_aside(
    path: Path | str,
    data: bytes,
    *,
    mode: int = 0o600,
    sync: bool = False,
    directory: int | None = None,
) -> None:
    """Write a file under the name `.<name>.new` and rename it to its own. Blocks.

    Args:
        path: the file; a name relative to `directory` where that is given.
        data: all of its content.
        mode: its permissions, less the umask.
        sync: whether the content must survive a power cut: it is on disk before the rename.
            The rename itself is durable after `sync_directory` only.
        directory: a descriptor of its directory.

    Raises OSError; the file is then as it was before.
    """
    parent, name = os.path.split(path)
    fresh = os.path.join(parent, f".{name}.new")  # may be relative to a descriptor
    try:
        descriptor = os.open(fresh, _FLAGS, mode, dir_fd=directory)
    except FileExistsError:
        # Left by a life that ended between the two steps. Opened as it is, it would keep its mode.
        os.unlink(fresh, dir_fd=directory)
        descriptor = os.open(fresh, _FLAGS, mode, dir_fd=directory)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            if sync:
                file.flush()
                os.fsync(descriptor)
        os.replace(fresh, path, src_dir_fd=directory, dst_dir_fd=directory)
    except OSError:
        with contextlib.suppress(OSError):  # the first failure says why
            os.unlink(fresh, dir_fd=directory)
        raise


def sync_directory(path: Path) -> None:
    """Put on disk which names a directory holds: renames and removals. Blocks; raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
