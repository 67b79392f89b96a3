"""Opening what somebody else may have made: a container, above all.

A name in a directory that a container can write to may be a link to the host's files, a FIFO
that blocks whoever opens it, a device whose opening acts, or a file without end. So it is looked
at before it is opened (an O_PATH descriptor touches nothing), and what is opened then is the very
thing that was looked at. Everything here blocks no longer than a disk does.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

_LOOK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: where a container holds a lease on the file (F_SETLEASE), EAGAIN and no waiting.
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

_FOLLOWED = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC

_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
}


def open_regular(path: str | os.PathLike[str], *, directory: int | None = None) -> int:
    """Open a regular file for reading; the caller closes the descriptor.

    The last component is not followed where it is a link. The parents are: hand a `directory`
    (a descriptor) and one component where these are somebody else's as well.

    Raises OSError: ELOOP for a link, EINVAL naming the kind for anything else that is no file.
    """
    looked = os.open(path, _LOOK, dir_fd=directory)
    try:
        return reopen_regular(looked, os.fspath(path))
    finally:
        os.close(looked)


def reopen_regular(descriptor: int, name: str) -> int:
    """Open for reading what an O_PATH descriptor stands for. Raises OSError as `open_regular`."""
    kind = stat.S_IFMT(os.fstat(descriptor).st_mode)
    if kind != stat.S_IFREG:
        number = errno.ELOOP if kind == stat.S_IFLNK else errno.EINVAL
        raise OSError(number, f"expected a file, found {_KINDS.get(kind, 'no file')}", name)
    return os.open(f"/proc/self/fd/{descriptor}", _READ)


def read_regular(
    path: str | os.PathLike[str], limit: int, *, directory: int | None = None
) -> bytes:
    """Return a regular file's content, of `limit` bytes at most.

    Raises OSError: EFBIG for a larger one, of which no more than a byte too many is read.
    """
    descriptor = open_regular(path, directory=directory)
    try:
        return read_limited(descriptor, limit, os.fspath(path))
    finally:
        os.close(descriptor)


def read_limited(descriptor: int, limit: int, name: str) -> bytes:
    """Return what is left of an open file, of `limit` bytes at most. Raises OSError (EFBIG)."""
    parts, left = [], limit + 1
    # A file that grows while it is read, or says a wrong size, costs no more than the limit.
    while left > 0 and (part := os.read(descriptor, min(left, 1 << 16))):
        parts.append(part)
        left -= len(part)
    if left <= 0:
        raise OSError(errno.EFBIG, f"expected {limit} bytes at most", name)
    return b"".join(parts)


def next_data(descriptor: int, position: int) -> int:
    """Return where the next data of a file begins, or its size: over a hole of any size at once.

    A file of a few bytes may be a terabyte long; reading that takes hours.
    """
    try:
        return os.lseek(descriptor, position, os.SEEK_DATA)
    except OSError as exc:
        if exc.errno == errno.ENXIO:  # a hole up to the end
            return os.fstat(descriptor).st_size
        if exc.errno == errno.EINVAL:  # a file system that knows nothing of holes
            return position
        raise


def last_data(descriptor: int, position: int, block: int) -> int:
    """Return where the last data before a position ends, `block` bytes too far on at most.

    0 where there is none.
    """
    low, step = position, block
    while low > 0:
        high, low = low, max(position - step, 0)
        if next_data(descriptor, low) < high:
            break
        step *= 2
    else:
        return 0
    while high - low > block:
        middle = (low + high) // 2
        if next_data(descriptor, middle) < high:
            low = middle
        else:
            high = middle
    return high


def open_directory(
    path: str | os.PathLike[str], *, directory: int | None = None, own: int = 1
) -> int:
    """Open a directory, and nothing that a link leads to; the caller closes the descriptor.

    Args:
        path: where it is.
        directory: a descriptor of the directory that the path starts from.
        own: how many of the path's last components are not followed where they are links. The
            others are the node's own: an administrator may have moved them elsewhere.

    Raises OSError: ENOTDIR for what is none.
    """
    if own == 1:
        return os.open(path, _DIRECTORY, dir_fd=directory)
    top, parts = _split(path, own)
    here = os.open(top, _FOLLOWED, dir_fd=directory)
    for part in parts:
        here = _step(here, part)
    return here


def make_directory(path: str | os.PathLike[str], mode: int, *, own: int) -> int:
    """Open a directory as `open_directory` does, having made those of its own that are missing.

    Raises OSError: ENOTDIR where something else is in the way.
    """
    top, parts = _split(path, own)
    here = os.open(top, _FOLLOWED)
    for part in parts:
        try:
            os.mkdir(part, mode, dir_fd=here)
        except FileExistsError:
            pass  # what it is shows when it is opened
        except OSError:
            os.close(here)
            raise
        here = _step(here, part)
    return here


def stat_own(path: str | os.PathLike[str], *, own: int) -> os.stat_result:
    """Return the `lstat` of what has a path, of whose last `own` components none is followed.

    Raises OSError.
    """
    if own == 1:
        return os.stat(path, follow_symlinks=False)
    head, name = os.path.split(os.fspath(path))
    parent = open_directory(head, own=own - 1)
    try:
        return os.stat(name, dir_fd=parent, follow_symlinks=False)
    finally:
        os.close(parent)


def _split(path: str | os.PathLike[str], own: int) -> tuple[Path, tuple[str, ...]]:
    """Return the path above a path's last `own` components, and these; fewer in a short path."""
    whole = Path(path)
    own = min(own, len(whole.parents))
    return whole.parents[own - 1], whole.parts[-own:]


def _step(here: int, name: str) -> int:
    """Open a directory in another, which is closed."""
    try:
        return os.open(name, _DIRECTORY, dir_fd=here)
    finally:
        os.close(here)
