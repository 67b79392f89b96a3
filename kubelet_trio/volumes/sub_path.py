"""subPath: open a part of a volume for a container, with no way out of the volume.

A container that shares the volume can replace a component of the path by a symbolic link, to the
host's /etc for example (CVE-2017-1002101,
https://kubernetes.io/blog/2018/04/04/fixing-subpath-volume-vulnerability/). Links within the
volume are allowed. So the walk opens one component at a time by descriptor, and reads links itself
instead of letting the kernel follow them; a link that leads outside ends the walk before anything
outside is opened. The descriptor, which nobody can swap, is then bind-mounted to a path outside
the volume, and the runtime mounts that path.
"""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from kubelet_trio.containers import make_directories
from kubelet_trio.model import read_limited, reopen_regular
from kubelet_trio.volumes.errors import SubPathError
from kubelet_trio.volumes.hung import PATIENCE, HungCalls
from kubelet_trio.volumes.mounter import Mounter

# O_PATH: to open a FIFO or a device itself could block, or act on the device.
_PATH = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_LINKS = 40  # Linux's own limit (MAXSYMLINKS)


def bind_sub_path(
    volume: Path, sub_path: str, target: Path, mounter: Mounter, hung: HungCalls
) -> None:
    """Bind-mount `sub_path` of a volume at `target`; make it as a directory if it is missing.

    Raises `SubPathError` and OSError: ETIMEDOUT if the volume's server does not answer.
    """
    opened = hung.run(
        str(target), partial(open_inside, volume, sub_path, make=True), PATIENCE, os.close
    )
    try:
        if _is_mounted(target, mounter):
            # Kept for the container's next instance, which must get the same file.
            if os.path.samestat(os.fstat(opened), target.stat()):
                return
            mounter.unmount(target)
        _make_target(target, is_directory=stat.S_ISDIR(os.fstat(opened).st_mode))
        # This path leads to the opened file, whatever its name in the volume now refers to.
        mounter.bind(f"/proc/self/fd/{opened}", target)
    finally:
        os.close(opened)


def read_inside(volume: Path, path: str, limit: int) -> bytes:
    """Read a regular file of a volume. Raises `SubPathError` and OSError."""
    looked = open_inside(volume, path)
    try:
        opened = reopen_regular(looked, path)
        try:
            return read_limited(opened, limit, path)
        finally:
            os.close(opened)
    finally:
        os.close(looked)


def open_inside(volume: Path, sub_path: str, *, make: bool = False) -> int:
    """Open a path within a volume as an O_PATH descriptor; the caller closes it.

    Args:
        volume: the volume's directory; the path to it is trusted.
        sub_path: relative to the volume.
        make: make missing directories, with the permissions of the volume's directory.

    Raises:
        SubPathError: it leads out of the volume, or holds a NUL byte.
        OSError: FileNotFoundError also for a dangling link; ELOOP for too many links.
    """
    if "\0" in sub_path:  # subPathExpr can bring one; open(2) would raise ValueError for it
        raise SubPathError(f"a NUL byte in {sub_path!r}")
    top = os.open(volume, os.O_PATH | os.O_CLOEXEC)
    # Absolute links within the volume may use its path as given, or the resolved one.
    walk = _Walk(top, os.dup(top), (str(volume), os.readlink(f"/proc/self/fd/{top}")))
    try:
        walk.go(sub_path, make=make)
    except (OSError, SubPathError):
        os.close(walk.here)
        raise
    finally:
        os.close(top)
    return walk.here


@dataclass(slots=True)
class _Walk:
    """A position below the top of a volume."""

    top: int
    here: int
    places: tuple[str, ...]  # the volume's paths, by which absolute links may name it
    _above: list[os.stat_result] = field(default_factory=list)  # the directories above `here`

    def go(self, path: str, *, make: bool) -> None:
        """Move along a path. Raises as `open_inside`."""
        left = [(part, make) for part in reversed(path.split("/"))]
        links = 0
        while left:
            name, make = left.pop()
            if name in ("", "."):
                continue
            if name == "..":
                self._up()
                continue
            opened = self._open(name, make=make)
            if not stat.S_ISLNK(os.fstat(opened).st_mode):
                self._above.append(os.fstat(self.here))
                self._step(opened)
                continue
            try:
                # The link that was opened, whatever has its name by now (readlinkat(2)).
                target = os.readlink("", dir_fd=opened)
            finally:
                os.close(opened)
            links += 1
            if links > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            # A link's own components are never created: a dangling link is an error.
            left += [(part, False) for part in reversed(self._inside(target).split("/"))]

    def _inside(self, target: str) -> str:
        """Return a link's target as a relative path; for an absolute one move to the top first."""
        if not target.startswith("/"):
            return target
        for place in self.places:
            if target == place or target.startswith(place.rstrip("/") + "/"):
                self._step(os.dup(self.top))
                self._above.clear()
                return target[len(place) :]
        raise SubPathError(f"a link to {target} is not within the volume {self.places[0]}")

    def _open(self, name: str, *, make: bool) -> int:
        """Open an entry here, or make a directory of that name. Raises OSError."""
        try:
            return _open_path(name, self.here)
        except FileNotFoundError:
            if not make:
                raise
        # Made here: the runtime would use a mode of its own (makeMounts in kubelet_pods.go). With
        # the sticky bit of a volume in memory (doSafeMakeDir in pkg/volume/util/subpath).
        mode = stat.S_IMODE(os.fstat(self.top).st_mode)
        os.mkdir(name, mode, dir_fd=self.here)
        made = _open_path(name, self.here)
        # Else a container has replaced it meanwhile; `chmod` must not change that file.
        if stat.S_ISDIR(os.fstat(made).st_mode):
            os.chmod(f"/proc/self/fd/{made}", mode)  # mkdir(2) applied the umask
        return made

    def _up(self) -> None:
        """Move to the parent, which must be the directory that the walk came from."""
        if not self._above:
            raise SubPathError(f"it leads out of the volume {self.places[0]}")
        above = os.open("..", _PATH, dir_fd=self.here)
        # A container can move a directory while the walk is in it; `..` could then lead outside.
        expected = self._above.pop()
        if not os.path.samestat(os.fstat(above), expected):
            os.close(above)
            raise SubPathError(f"a directory of the volume {self.places[0]} was moved meanwhile")
        self._step(above)

    def _step(self, descriptor: int) -> None:
        os.close(self.here)
        self.here = descriptor


def _open_path(name: str, directory: int) -> int:
    """Open an entry of a directory, of any type, without following it. Raises OSError."""
    try:
        # As a directory first: then autofs mounts what it has there, and O_PATH alone shows the
        # empty directory below (doSafeOpen in pkg/volume/util/subpath).
        return os.open(name, _PATH | os.O_DIRECTORY, dir_fd=directory)
    except NotADirectoryError:
        return os.open(name, _PATH, dir_fd=directory)


def _is_mounted(target: Path, mounter: Mounter) -> bool:
    path = str(target)
    return any(mount.path == path for mount in mounter.mounts())


def _make_target(target: Path, *, is_directory: bool) -> None:
    """Make the mount point: an empty directory or an empty file, like the source."""
    make_directories(target.parent)
    if is_directory:
        if target.is_file():
            target.unlink()
        target.mkdir(mode=0o750, exist_ok=True)
        return
    # A file is a mount point for a socket or a device too (prepareSubpathTarget).
    if target.is_dir():
        target.rmdir()
    target.touch(mode=0o640)
