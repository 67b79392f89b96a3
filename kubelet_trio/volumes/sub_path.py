"""subPath: a part of a volume for a container, without a way out of the volume.

A container may write to the volume it shares, and so may put a symbolic link where the
next container's subPath will be looked up, to the host's /etc for one
(https://kubernetes.io/blog/2018/04/04/fixing-subpath-volume-vulnerability/). Links that
stay inside the volume are allowed. So the path is resolved first and must lie within the
volume; then it is opened again one component at a time with links refused, and what was
opened (by descriptor, so nothing can be swapped under it) is bound to a place outside
the volume, which is what the runtime is told to mount.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from kubelet_trio.containers import make_directories
from kubelet_trio.model import read_limited, reopen_regular
from kubelet_trio.volumes.mounter import Mounter

_PATH = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class SubPathError(Exception):
    """A subPath cannot be used. Names host paths: for the log, not for the pod's owner."""


def bind_sub_path(volume: Path, sub_path: str, target: Path, mounter: Mounter) -> None:
    """Make `sub_path` of a volume visible at `target`, creating it as a directory if missing.

    A target already bound to the very same file is left alone, so that a container's next
    instance gets what the first had. Raises `SubPathError` and OSError.
    """
    root = _resolve(volume)
    make_inside(root, sub_path)
    descriptor = open_inside(root, sub_path)
    try:
        if _is_mounted(target, mounter):
            if os.path.samestat(os.fstat(descriptor), target.stat()):
                return
            mounter.unmount(target)
        _make_target(target, is_directory=stat.S_ISDIR(os.fstat(descriptor).st_mode))
        mounter.bind(f"/proc/self/fd/{descriptor}", target)
    finally:
        os.close(descriptor)


def open_inside(root: Path, sub_path: str) -> int:
    """Open what `sub_path` leads to within a resolved `root`; the caller closes it.

    The descriptor is an O_PATH one: for fstat and as a mount's source.
    """
    inside = _inside(root, _resolve(root / sub_path))
    descriptor = os.open(root, _PATH)
    for part in inside.parts:
        try:
            opened = os.open(part, _PATH, dir_fd=descriptor)
        finally:
            os.close(descriptor)
        descriptor = opened
        if stat.S_ISLNK(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise SubPathError(f"{part} of {inside} became a symbolic link")
    return descriptor


def read_inside(volume: Path, path: str, limit: int) -> bytes:
    """Read a file of a volume. Raises `SubPathError` and OSError, FileNotFoundError above all."""
    looked = open_inside(_resolve(volume), path)
    try:
        opened = reopen_regular(looked, path)
        try:
            return read_limited(opened, limit, path)
        finally:
            os.close(opened)
    finally:
        os.close(looked)


def make_inside(root: Path, sub_path: str) -> None:
    """Make the directories of `sub_path` that are missing, with the permissions of `root`.

    Only what is missing is made, in the resolved place of what is there.
    """
    wanted = root / sub_path
    if wanted.exists():
        return
    existing = wanted
    while not os.path.lexists(existing):
        existing = existing.parent
    missing = wanted.relative_to(existing).parts
    inside = _inside(root, _resolve(existing))
    mode = stat.S_IMODE(root.stat().st_mode) & (0o777 | stat.S_ISGID)
    descriptor = os.open(root, _DIRECTORY)
    try:
        for part in inside.parts:
            descriptor = _descend(descriptor, part)
        for part in missing:
            os.mkdir(part, mode, dir_fd=descriptor)
            descriptor = _descend(descriptor, part)
            os.fchmod(descriptor, mode)  # whatever the umask
    finally:
        os.close(descriptor)


def _descend(descriptor: int, part: str) -> int:
    child = os.open(part, _DIRECTORY, dir_fd=descriptor)
    os.close(descriptor)
    return child


def _resolve(path: Path) -> Path:
    # Path.resolve raises RuntimeError for a loop of links before Python 3.13.
    return Path(os.path.realpath(path, strict=True))


def _inside(root: Path, resolved: Path) -> Path:
    try:
        return resolved.relative_to(root)
    except ValueError:
        raise SubPathError(f"{resolved} is not within the volume {root}") from None


def _is_mounted(target: Path, mounter: Mounter) -> bool:
    path = str(target)
    return any(mount.path == path for mount in mounter.mounts())


def _make_target(target: Path, *, is_directory: bool) -> None:
    """Make the mount point: an empty directory or an empty file, as the source is one."""
    make_directories(target.parent)
    if is_directory:
        if target.is_file():
            target.unlink()
        target.mkdir(mode=0o750, exist_ok=True)
        return
    if target.is_dir():
        target.rmdir()
    target.touch(mode=0o640)
