"""The seam to the kernel's mounts. All of it blocks; callers hand it to a thread."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

from kubelet_trio.volumes.hung import HungCalls
from kubelet_trio.volumes.mount_nfs import run_mount_nfs
from kubelet_trio.volumes.mountinfo import MountPoint, read_mountinfo

_MS_BIND = 0x1000
_MS_REC = 0x4000
_MS_SHARED = 0x100000
_UMOUNT_NOFOLLOW = 0x8
_MNT_FORCE = 0x1
_PATIENCE = 60.0  # seconds for unmounting what a server has


class Mounter(Protocol):
    """Mounts and unmounts. Every method raises OSError with the kernel's errno."""

    def mount_tmpfs(self, target: Path, options: Sequence[str] = ()) -> None:
        """Mount a new tmpfs over a directory; options such as `size=1048576`."""
        ...

    def mount_hugetlbfs(self, target: Path, options: Sequence[str] = ()) -> None:
        """Mount a new hugetlbfs over a directory; options such as `pagesize=2097152`."""
        ...

    def mount_nfs(self, source: str, target: Path, options: Sequence[str] = ()) -> None:
        """Mount an NFS export (`server:/path`). OSError too where the host has no helper."""
        ...

    def bind(self, source: str, target: Path) -> None:
        """Show `source` (file or directory, with what is mounted below it) at `target`."""
        ...

    def share(self, target: Path) -> None:
        """Make a directory a mount point whose mounts are shared with the containers'."""
        ...

    def unmount(self, target: Path) -> None:
        """Take away the topmost mount at `target`: EINVAL if none, EBUSY if in use.

        ETIMEDOUT where its server does not answer: it stays then, or goes later.
        """
        ...

    def mounts(self) -> list[MountPoint]:
        """Return what is mounted in this process' mount namespace."""
        ...


class KernelMounter:
    """The real one: mount(2) and umount2(2) through libc."""

    def __init__(self) -> None:
        import ctypes  # costs memory, and not every mode mounts

        self._libc = ctypes.CDLL(None, use_errno=True)
        self._errno = ctypes.get_errno
        self._hung = HungCalls()
        self._libc.mount.argtypes = (
            ctypes.c_char_p,
            ctypes.c_char_p,
            ctypes.c_char_p,
            ctypes.c_ulong,
            ctypes.c_char_p,
        )
        self._libc.umount2.argtypes = (ctypes.c_char_p, ctypes.c_int)

    def mount_tmpfs(self, target: Path, options: Sequence[str] = ()) -> None:
        self._mount("tmpfs", target, "tmpfs", 0, ",".join(options))

    def mount_hugetlbfs(self, target: Path, options: Sequence[str] = ()) -> None:
        self._mount("nodev", target, "hugetlbfs", 0, ",".join(options))

    def mount_nfs(self, source: str, target: Path, options: Sequence[str] = ()) -> None:
        run_mount_nfs(source, target, options)

    def bind(self, source: str, target: Path) -> None:
        self._mount(source, target, "", _MS_BIND | _MS_REC, "")

    def share(self, target: Path) -> None:
        mounts = self.mounts()
        around = _mount_around(target, mounts)
        if around is not None and around.shared:
            return
        if around is None or around.path != str(target):
            if any(m.path.startswith(f"{target}/") for m in mounts):
                # A bind mount on top would hide them, and nobody could unmount them any more.
                raise OSError(errno.EBUSY, "something is mounted below it already", str(target))
            self.bind(str(target), target)
        self._mount("", target, "", _MS_SHARED | _MS_REC, "")

    def unmount(self, target: Path) -> None:
        if not any(m.path == str(target) and _is_remote(m) for m in self.mounts()):
            self._unmount(target)
            return
        try:
            self._hung.run(str(target), partial(self._unmount, target), _PATIENCE)
        except TimeoutError:
            # As the Go kubelet does for NFS: what waits for the server is given up.
            self._hung.run(f"{target} (by force)", partial(self._unmount, target, _MNT_FORCE), 5)

    def _unmount(self, target: Path, flags: int = 0) -> None:
        if self._libc.umount2(os.fsencode(target), _UMOUNT_NOFOLLOW | flags) != 0:
            raise self._error(target)

    def mounts(self) -> list[MountPoint]:
        return read_mountinfo()

    def _mount(self, source: str, target: Path, fstype: str, flags: int, data: str) -> None:
        result = self._libc.mount(
            os.fsencode(source), os.fsencode(target), fstype.encode(), flags, data.encode()
        )
        if result != 0:
            raise self._error(target)

    def _error(self, target: Path) -> OSError:
        number = self._errno()
        return OSError(number, os.strerror(number), str(target))


def _is_remote(mount: MountPoint) -> bool:
    return mount.fstype.startswith("nfs")


def _mount_around(path: Path, mounts: Sequence[MountPoint]) -> MountPoint | None:
    """Return the mount that a path is on: the latest of those at it or nearest above it."""
    places = {str(path), *map(str, path.parents)}
    found = [mount for mount in mounts if mount.path in places]
    return max(found, key=lambda mount: len(mount.path), default=None)


def is_bound_to_itself(target: Path, mounts: Sequence[MountPoint]) -> bool:
    """Whether the mount at `target` is what `share` makes: the directory, onto itself.

    A file system of its own that an administrator mounted there is none, and neither is
    what has further mounts on it or below it.
    """
    here = [m for m in mounts if m.path == str(target) or m.path.startswith(f"{target}/")]
    around = _mount_around(target.parent, mounts)
    if len(here) != 1 or here[0].path != str(target) or around is None:
        return False
    own = Path(around.root) / target.relative_to(around.path)
    return here[0].source == around.source and Path(here[0].root) == own
