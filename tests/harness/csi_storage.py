"""Volumes of a test driver with real mounts: directories, tmpfs, and ext4 or raw loop devices.

The beginning of a volume's id says what it is: `tmpfs-...`, `ext4-...`, else a directory; asked for
as a block volume, each is a loop device. Every effect looks at the mount table first, so it
completes what an earlier life left half done.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import trio

from kubelet_trio.testing.csi import CsiCall, StorageUsage

_IMAGE_BYTES = 16 << 20


class RealStorage:
    """Implements `CsiStorage` below one directory; the data outlives stages and drivers."""

    def __init__(self, base: Path) -> None:
        self._base = base
        base.mkdir(parents=True, exist_ok=True)

    async def stage(self, call: CsiCall) -> None:
        await trio.to_thread.run_sync(self._stage, call)

    async def unstage(self, call: CsiCall) -> None:
        await trio.to_thread.run_sync(self._unstage, call)

    async def publish(self, call: CsiCall) -> None:
        await trio.to_thread.run_sync(self._publish, call)

    async def unpublish(self, call: CsiCall) -> None:
        await trio.to_thread.run_sync(self._unpublish, call)

    async def usage(self, call: CsiCall) -> StorageUsage:
        return await trio.to_thread.run_sync(_usage, Path(call.path))

    async def expand(self, call: CsiCall) -> int:
        return await trio.to_thread.run_sync(self._expand, call)

    def data(self, volume_id: str) -> Path:
        """Return the directory of a volume's data."""
        return self._base / volume_id

    def _image(self, volume_id: str) -> Path:
        return self._base / f"{volume_id}.img"

    def _stage(self, call: CsiCall) -> None:
        assert call.capability is not None
        target = Path(call.staging_path)
        if call.capability.is_block:
            self._attach(call.volume_id)
        elif not is_mounted(target):
            self._mount_volume(call.volume_id, target)

    def _mount_volume(self, volume_id: str, target: Path) -> None:
        if volume_id.startswith("tmpfs-"):
            _run("mount", "-t", "tmpfs", "-o", "size=16m", volume_id, str(target))
        elif volume_id.startswith("ext4-"):
            is_new = not self._image(volume_id).exists()
            device = self._attach(volume_id)
            if is_new or not _has_file_system(device):
                _run("mkfs.ext4", "-q", "-F", device)
            _run("mount", "-t", "ext4", device, str(target))
        else:
            self.data(volume_id).mkdir(exist_ok=True)
            _run("mount", "--bind", str(self.data(volume_id)), str(target))

    def _unstage(self, call: CsiCall) -> None:
        unmount_all(Path(call.staging_path))
        self._detach(call.volume_id)

    def _publish(self, call: CsiCall) -> None:
        assert call.capability is not None
        target = Path(call.path)
        if is_mounted(target):
            return
        if call.capability.is_block:
            target.touch()
            _run("mount", "--bind", self._attach(call.volume_id), str(target))
            return
        target.mkdir(exist_ok=True)
        if call.staging_path:
            _run("mount", "--bind", call.staging_path, str(target))
        else:
            self._mount_volume(call.volume_id, target)
        if call.is_read_only:
            _run("mount", "-o", "remount,bind,ro", str(target))

    def _unpublish(self, call: CsiCall) -> None:
        target = Path(call.path)
        unmount_all(target)
        if target.is_dir():
            target.rmdir()
        else:
            target.unlink(missing_ok=True)

    def forget(self, volume_id: str) -> None:
        """Remove the data of an ephemeral volume."""
        shutil.rmtree(self.data(volume_id), ignore_errors=True)

    def _expand(self, call: CsiCall) -> int:
        image = self._image(call.volume_id)
        if image.exists() and image.stat().st_size < call.required_bytes:
            os.truncate(image, call.required_bytes)
            device = self._device(call.volume_id)
            if device:
                _run("losetup", "-c", device)
                if _has_file_system(device):
                    _run("resize2fs", device)
        return call.required_bytes

    # Loop devices

    def _attach(self, volume_id: str) -> str:
        image = self._image(volume_id)
        if not image.exists():
            with image.open("wb") as made:
                made.truncate(_IMAGE_BYTES)
        return self._device(volume_id) or _run("losetup", "--find", "--show", str(image)).strip()

    def _device(self, volume_id: str) -> str:
        found = _run("losetup", "--noheadings", "--output", "NAME", "-j", self._image(volume_id))
        return found.split()[0] if found.split() else ""

    def _detach(self, volume_id: str) -> None:
        if self._image(volume_id).exists() and (device := self._device(volume_id)):
            _run("losetup", "-d", device)

    def close(self) -> None:
        """Detach every loop device whose image is here; the mounts must be gone."""
        for image in self._base.glob("*.img"):
            self._detach(image.name.removesuffix(".img"))


def is_mounted(path: Path) -> bool:
    return str(path) in mount_points()


def mount_points() -> list[str]:
    """Return the mount points of this process, in the kernel's order."""
    text = Path("/proc/self/mountinfo").read_text()
    return [line.split()[4].replace("\\040", " ") for line in text.splitlines()]


def unmount_all(path: Path) -> None:
    """Unmount everything that is mounted at a path, one over the other."""
    for _ in range(mount_points().count(str(path))):
        _run("umount", str(path))


def _has_file_system(device: str) -> bool:
    asked = ["blkid", "-p", "-o", "value", "-s", "TYPE", device]
    return bool(subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip())


def _usage(path: Path) -> StorageUsage:
    found = os.statvfs(path)
    return StorageUsage(
        found.f_blocks * found.f_frsize,
        (found.f_blocks - found.f_bfree) * found.f_frsize,
        found.f_bavail * found.f_frsize,
        found.f_files,
        found.f_files - found.f_ffree,
        found.f_favail,
    )


def _run(*command: str | Path) -> str:
    """Run a tool of the host. Raises OSError with what it said."""
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise OSError(done.returncode, f"{' '.join(map(str, command))}: {done.stderr.strip()}")
    return done.stdout
