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

_LOOK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: where a container holds a lease on the file (F_SETLEASE), EAGAIN and no waiting.
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

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


def open_directory(path: str | os.PathLike[str], *, directory: int | None = None) -> int:
    """Open a directory, and nothing that a link leads to; the caller closes the descriptor.

    Raises OSError: ENOTDIR for what is none.
    """
    return os.open(path, _DIRECTORY, dir_fd=directory)
