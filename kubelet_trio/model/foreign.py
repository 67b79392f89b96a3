"""Opens files safely that a container or another party may have created.

In a directory that a container can write to, a name may be a link to the host's files, a FIFO
that blocks open(2), a device with side effects on opening, or an endless file. Each function
therefore checks the type through an O_PATH descriptor, which has no side effects, and then opens
that same descriptor. None of them blocks longer than the disk.
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

    The last component is not followed if it is a link; the parents are. If a container may have
    replaced these, too, pass `directory` (a descriptor) and a single component.

    Raises OSError: ELOOP for a link, EINVAL with the type for anything else that is not a file.
    """
    looked = os.open(path, _LOOK, dir_fd=directory)
    try:
        return reopen_regular(looked, os.fspath(path))
    finally:
        os.close(looked)


def reopen_regular(descriptor: int, name: str) -> int:
    """Open the file of an O_PATH descriptor for reading. Raises OSError like `open_regular`."""
    kind = stat.S_IFMT(os.fstat(descriptor).st_mode)
    if kind != stat.S_IFREG:
        number = errno.ELOOP if kind == stat.S_IFLNK else errno.EINVAL
        raise OSError(number, f"expected a file, found {_KINDS.get(kind, 'no file')}", name)
    # By /proc the same inode is opened, even if the name is another file by now.
    return os.open(f"/proc/self/fd/{descriptor}", _READ)


def read_regular(
    path: str | os.PathLike[str], limit: int, *, directory: int | None = None
) -> bytes:
    """Return the content of a regular file, at most `limit` bytes.

    Raises OSError: EFBIG if it is larger; at most one byte more than the limit is read.
    """
    descriptor = open_regular(path, directory=directory)
    try:
        return read_limited(descriptor, limit, os.fspath(path))
    finally:
        os.close(descriptor)


def read_limited(descriptor: int, limit: int, name: str) -> bytes:
    """Return the rest of an open file, at most `limit` bytes. Raises OSError (EFBIG)."""
    data = read_start(descriptor, limit + 1)
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"expected {limit} bytes at most", name)
    return data


def read_start(descriptor: int, most: int) -> bytes:
    """Return the rest of an open file, but at most `most` bytes of it.

    A file object's `read(most)` allocates all of them at once, however small the file is.
    """
    parts, left = [], most
    # The size in stat(2) is not used: the file may grow meanwhile, or report a wrong size.
    while left > 0 and (part := os.read(descriptor, min(left, 1 << 16))):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def next_data(descriptor: int, position: int) -> int:
    """Return the position of a file's next data, or its size; skips holes (sparse files).

    A sparse file may be a terabyte long; reading its holes would take hours.
    """
    try:
        return os.lseek(descriptor, position, os.SEEK_DATA)
    except OSError as exc:
        if exc.errno == errno.ENXIO:  # only a hole up to the end (lseek(2))
            return os.fstat(descriptor).st_size
        if exc.errno == errno.EINVAL:  # the file system does not support SEEK_DATA
            return position
        raise


def last_data(descriptor: int, position: int, block: int) -> int:
    """Return the end of the last data before a position, at most `block` bytes too far.

    Returns 0 if there is none.
    """
    # SEEK_DATA looks forward only: double the step backwards, then bisect.
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
    """Open a directory without following links; the caller closes the descriptor.

    Args:
        path: of the directory.
        directory: a descriptor of the directory that the path starts from.
        own: how many of the path's last components must not be links. Those above belong to
            the node: an administrator may have replaced them by links.

    Raises OSError: ENOTDIR if it is not a directory.
    """
    if own == 1:
        return os.open(path, _DIRECTORY, dir_fd=directory)
    top, parts = _split(path, own)
    here = os.open(top, _FOLLOWED, dir_fd=directory)
    for part in parts:
        here = _step(here, part)
    return here


def make_directory(path: str | os.PathLike[str], mode: int, *, own: int) -> int:
    """Open a directory like `open_directory`; create the missing ones of its `own` components.

    Raises OSError: ENOTDIR if one of them is not a directory.
    """
    top, parts = _split(path, own)
    here = os.open(top, _FOLLOWED)
    for part in parts:
        try:
            os.mkdir(part, mode, dir_fd=here)
        except FileExistsError:
            pass  # its type is checked when it is opened
        except OSError:
            os.close(here)
            raise
        here = _step(here, part)
    return here


def stat_own(path: str | os.PathLike[str], *, own: int) -> os.stat_result:
    """Return the `lstat` of a path without following its last `own` components.

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
    """Split off a path's last `own` components (fewer in a short path)."""
    whole = Path(path)
    own = min(own, len(whole.parents))
    return whole.parents[own - 1], whole.parts[-own:]


def _step(here: int, name: str) -> int:
    """Open a subdirectory, and close the directory `here`."""
    try:
        return os.open(name, _DIRECTORY, dir_fd=here)
    finally:
        os.close(here)
