"""What a CSI driver does on its node: a seam, and its implementation in memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from kubelet_trio.testing.csi.calls import CsiCall
from kubelet_trio.testing.mounts import FakeMounter
from kubelet_trio.volumes import Mounter


@dataclass(frozen=True, slots=True)
class StorageUsage:
    """How full a volume is, for NodeGetVolumeStats; and its condition."""

    total_bytes: int = 0
    used_bytes: int = 0
    available_bytes: int = 0
    total_inodes: int = 0
    used_inodes: int = 0
    available_inodes: int = 0
    is_abnormal: bool = False
    condition: str = ""


class CsiStorage(Protocol):
    """The effects of a driver's calls. Each is idempotent; it may be cancelled half done.

    Raises `GRPCError` with the answer, or OSError: the driver answers INTERNAL. Both say that
    nothing changed.
    """

    async def stage(self, call: CsiCall) -> None: ...

    async def unstage(self, call: CsiCall) -> None: ...

    async def publish(self, call: CsiCall) -> None: ...

    async def unpublish(self, call: CsiCall) -> None: ...

    async def usage(self, call: CsiCall) -> StorageUsage: ...

    async def expand(self, call: CsiCall) -> int:
        """Return the volume's new size in bytes."""
        ...


DATA = "data"


class FakeStorage:
    """Mounts in a `FakeMounter`'s table, on real directories.

    While a file system is mounted, its directory holds a file `DATA`, which is the volume's:
    `destroyed` lists the mount points where somebody removed it.
    """

    def __init__(self, mounter: Mounter | None = None) -> None:
        self.destroyed: list[str] = []
        self.mounter = mounter if mounter is not None else FakeMounter()
        self.reported = StorageUsage(1 << 30, 1 << 20, (1 << 30) - (1 << 20), 1000, 10, 990)

    async def stage(self, call: CsiCall) -> None:
        if call.capability is None or not call.capability.is_block:
            self._mount(Path(call.staging_path))

    async def unstage(self, call: CsiCall) -> None:
        self._unmount(Path(call.staging_path))

    async def publish(self, call: CsiCall) -> None:
        if call.capability is not None and call.capability.is_block:
            self._bind_device(Path(call.path))
        else:
            self._mount(Path(call.path))

    async def unpublish(self, call: CsiCall) -> None:
        self._unmount(Path(call.path))
        _remove(Path(call.path))

    async def usage(self, call: CsiCall) -> StorageUsage:
        return self.reported

    async def expand(self, call: CsiCall) -> int:
        return call.required_bytes

    def _is_mounted(self, path: Path) -> bool:
        return any(mount.path == str(path) for mount in self.mounter.mounts())

    def _mount(self, path: Path) -> None:
        path.mkdir(exist_ok=True)
        if not self._is_mounted(path):
            self.mounter.mount_tmpfs(path)
            (path / DATA).touch()

    def _bind_device(self, path: Path) -> None:
        path.touch()
        if not self._is_mounted(path):
            self.mounter.bind("/dev/null", path)

    def _unmount(self, path: Path) -> None:
        if not self._is_mounted(path):
            return
        if path.is_file():
            self.mounter.unmount(path)
            return
        if not (path / DATA).exists():
            self.destroyed.append(str(path))
        self.mounter.unmount(path)
        (path / DATA).unlink(missing_ok=True)


def _remove(target: Path) -> None:
    if target.is_dir():
        target.rmdir()
    else:
        target.unlink(missing_ok=True)
