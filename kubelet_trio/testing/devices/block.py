"""A fake of `volumes.loop.BlockDevices`: files stand for devices."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from kubelet_trio.testing.mounts import FakeMounter
from kubelet_trio.volumes import LoopUnavailableError


class FakeBlockDevices:
    """Implements `BlockDevices`: a device is a file that `add` made, or one mounted on another.

    A loop device keeps its backing file busy, so that its unmount fails with EBUSY.
    """

    def __init__(self, mounter: FakeMounter) -> None:
        self.loops: dict[str, str] = {}  # loop devices by the path they are attached to
        self.no_loops = False  # the host has none, or gives the agent none
        self._mounter = mounter
        self._numbers: dict[str, int] = {}

    def add(self, path: Path, number: int) -> None:
        """Make a device, or let another one have its path."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        self._numbers[str(path)] = number

    def forget(self, path: Path) -> None:
        """Let a path be no device any more."""
        del self._numbers[str(path)]

    def number(self, path: Path) -> int:
        real = os.path.realpath(path, strict=True)
        # A bind mount of a bind mount shows the same device.
        mounts = self._mounter.mounts()
        mounted = {mount.path: mount.root for mount in mounts if mount.path != mount.root}
        while real in mounted:
            real = mounted[real]
        if real not in self._numbers:
            raise ValueError(f'path "{path}" is no block device')
        return self._numbers[real]

    def attach(self, backing: Path, *, read_only: bool = False) -> Path:
        if self.no_loops:
            raise LoopUnavailableError(errno.EPERM, "no loop device: Operation not permitted")
        if not backing.exists():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(backing))
        path = str(backing)
        if path not in self.loops:
            taken = set(self.loops.values())
            self.loops[path] = next(n for i in range(256) if (n := f"/dev/loop{i}") not in taken)
            self._mounter.busy.add(path)
        return Path(self.loops[path])

    def find(self, backing: Path) -> list[Path]:
        return [Path(self.loops[str(backing)])] if str(backing) in self.loops else []

    def detach(self, backing: Path) -> None:
        if self.loops.pop(str(backing), None) is not None:
            self._mounter.busy.discard(str(backing))
