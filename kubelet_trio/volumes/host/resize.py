"""Let the file system on a device grow to the device's size, while it is mounted.

As ResizeFs of k8s.io/mount-utils (resizefs_linux.go): ext3, ext4, xfs and btrfs, by the programs of
the host. Other than there, the file system's own size is compared first, for all of them: a host
that lacks the program still mounts a volume that has its size already. All of it blocks.
"""

from __future__ import annotations

import os
from pathlib import Path

from kubelet_trio.model import get_logger
from kubelet_trio.volumes.host.format import disk_format
from kubelet_trio.volumes.tools import FORMAT_LIMIT, Tools

log = get_logger()

# Superblocks, as the kernel documents them: Documentation/filesystems/ext4 (super.rst),
# fs/xfs/libxfs/xfs_format.h and include/uapi/linux/btrfs_tree.h.
_EXT_AT, _EXT_64BIT = 1024, 0x80
_BTRFS_AT = 64 << 10
_HEAD = _BTRFS_AT + 4096  # bytes of a device with any of them

RESIZABLE = ("btrfs", "ext3", "ext4", "xfs")


def grow_filesystem(tools: Tools, device: Path, mounted_at: Path) -> bool:
    """Let a mounted file system grow; return False if it has its device's size, or none at all.

    Raises OSError, `MissingToolError` among them, and ValueError for a file system that no
    program can let grow.
    """
    found = disk_format(tools, device)
    # mkfs uses all of an empty device.
    if not found:
        return False
    if found not in RESIZABLE:
        raise ValueError(
            f"resize of format {found} is not supported for device {device} mounted at {mounted_at}"
        )
    if not is_larger(device, found):
        return False
    if found == "xfs":
        command: tuple[str, ...] = ("xfs_growfs", "-d", str(mounted_at))
    elif found == "btrfs":
        command = ("btrfs", "filesystem", "resize", "max", str(mounted_at))
    else:
        command = ("resize2fs", str(device))
    # As long as mkfs: a large file system on a slow disk takes its time.
    done = tools.run(*command, limit=FORMAT_LIMIT)
    if done.code != 0:
        raise OSError(
            f"resize of device {device} failed: {done.ending}. {command[0]} output: {done.excerpt}"
        )
    log.info("volume.filesystem_grown", device=str(device), path=str(mounted_at))
    return True


def device_size(device: Path) -> int:
    """Return the size of a block device in bytes. Raises OSError."""
    descriptor = os.open(device, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.lseek(descriptor, 0, os.SEEK_END)
    finally:
        os.close(descriptor)


def is_larger(device: Path, fstype: str) -> bool:
    """Whether a device has at least one more block than its file system. Raises OSError."""
    descriptor = os.open(device, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.lseek(descriptor, 0, os.SEEK_END)
        block, blocks = _filesystem_size(os.pread(descriptor, _HEAD, 0), fstype)
    finally:
        os.close(descriptor)
    if not block:
        # The program of the host knows better.
        return True
    return size >= (blocks + 1) * block


def _filesystem_size(head: bytes, fstype: str) -> tuple[int, int]:
    """Return the size of a block and their number, from the first bytes; (0, 0) if unknown."""
    if fstype == "xfs" and head[:4] == b"XFSB":
        return _big(head, 4, 4), _big(head, 8, 8)
    if fstype == "btrfs":
        start = head[_BTRFS_AT:]
        sector = _little(start, 0x90, 4)
        if start[0x40:0x48] == b"_BHRfS_M" and sector:
            return sector, _little(start, 0x70, 8) // sector
    if fstype.startswith("ext"):
        start = head[_EXT_AT:]
        if _little(start, 0x38, 2) == 0xEF53 and _little(start, 0x18, 4) < 16:
            high = _little(start, 0x150, 4) if _little(start, 0x60, 4) & _EXT_64BIT else 0
            return 1024 << _little(start, 0x18, 4), high << 32 | _little(start, 4, 4)
    return 0, 0


def _little(data: bytes, at: int, size: int) -> int:
    return int.from_bytes(data[at : at + size], "little")


def _big(data: bytes, at: int, size: int) -> int:
    return int.from_bytes(data[at : at + size], "big")
