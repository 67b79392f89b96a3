"""A mount table in memory that keeps the kernel's rules, for real directories."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from kubelet_trio.volumes import MountPoint


class FakeMounter:
    """Implements `volumes.Mounter` without mounting: a target must exist, a busy mount stays.

    `busy` contains targets whose unmount fails with EBUSY, as if a process used them.
    A bind mount does not show the source's content at its target.
    """

    def __init__(self) -> None:
        self.busy: set[str] = set()
        self._mounts: list[MountPoint] = []

    def mount_tmpfs(self, target: Path, options: Sequence[str] = ()) -> None:
        _must_exist(target)
        self._mounts.append(
            MountPoint(str(target), "tmpfs", "tmpfs", super_options=("rw", *options))
        )

    def mount_hugetlbfs(self, target: Path, options: Sequence[str] = ()) -> None:
        _must_exist(target)
        self._mounts.append(
            MountPoint(str(target), "hugetlbfs", "nodev", super_options=("rw", *options))
        )

    def mount_nfs(self, source: str, target: Path, options: Sequence[str] = ()) -> None:
        _must_exist(target)
        self._mounts.append(MountPoint(str(target), "nfs4", source, super_options=tuple(options)))

    def mount_device(
        self, source: str, target: Path, fstype: str, options: Sequence[str] = ()
    ) -> None:
        _must_exist(Path(source))
        _must_exist(target)
        own = ("ro",) if "ro" in options else ("rw",)
        # The source stands for the device number, which the kernel has.
        self._mounts.append(
            MountPoint(
                str(target),
                fstype,
                source,
                options=own,
                super_options=tuple(options),
                device=os.path.realpath(source),
            )
        )

    def bind(self, source: str, target: Path) -> None:
        # For a descriptor the kernel uses the opened file, whatever is at its path by now.
        is_open = source.startswith("/proc/self/fd/")
        origin = os.readlink(source) if is_open else os.path.realpath(source)
        _must_exist(Path(source))
        _must_exist(target)
        # mount(2): a file cannot be mounted on a directory, nor the other way round.
        if Path(source).is_dir() != target.is_dir():
            raise _os_error(errno.ENOTDIR, target)
        whole = self._device_mount(origin)
        if whole is None:
            self._mounts.append(MountPoint(str(target), "ext4", origin, root=origin))
            return
        # A bind mount shows part of the same file system (proc_pid_mountinfo(5)).
        inside = os.path.relpath(origin, whole.path)
        root = os.path.normpath(os.path.join(whole.root, inside))
        self._mounts.append(replace(whole, path=str(target), root=root))

    def restrict(self, target: Path, options: Sequence[str]) -> None:
        for number, mount in enumerate(self._mounts):
            if mount.path == str(target):
                self._mounts[number] = replace(mount, options=tuple(options))

    def _device_mount(self, path: str) -> MountPoint | None:
        """Return the mount of a device that a path is in, if it is in one."""
        around = [m for m in self._mounts if path == m.path or path.startswith(m.path + "/")]
        # Of equals the one mounted last, which is on top.
        found = max(reversed(around), key=lambda m: len(m.path), default=None)
        return found if found is not None and found.device else None

    def share(self, target: Path) -> None:
        _must_exist(target)

    def unmount(self, target: Path) -> None:
        path = str(target)
        # The last one is on top.
        found = next((m for m in reversed(self._mounts) if m.path == path), None)
        if found is None:
            raise _os_error(errno.EINVAL, target)
        # Mounts below it keep a mount busy, as open files do (umount(2)).
        above = any(m.path.startswith(path + "/") for m in self._mounts)
        if above or path in self.busy:
            raise _os_error(errno.EBUSY, target)
        self._mounts.remove(found)

    def detach(self, target: Path) -> None:
        path = str(target)
        if all(mount.path != path for mount in self._mounts):
            raise _os_error(errno.EINVAL, target)
        self._mounts = [m for m in self._mounts if not f"{m.path}/".startswith(f"{path}/")]

    def mounts(self) -> list[MountPoint]:
        return list(self._mounts)


def _must_exist(path: Path) -> None:
    if not path.exists():
        raise _os_error(errno.ENOENT, path)


def _os_error(number: int, path: Path) -> OSError:
    return OSError(number, os.strerror(number), str(path))
