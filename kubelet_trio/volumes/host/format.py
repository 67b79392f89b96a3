"""Format a device that is empty, check one that is not, and mount it.

As SafeFormatAndMount of k8s.io/mount-utils: a device with a file system or a partition table is
never formatted, whatever file system the volume asks for. All of it blocks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from kubelet_trio.model import get_logger
from kubelet_trio.volumes.errors import FilesystemMismatchError, MissingToolError
from kubelet_trio.volumes.mounter import Mounter
from kubelet_trio.volumes.tools import FORMAT_LIMIT, ToolResult, Tools

log = get_logger()

DEFAULT_FSTYPE = "ext4"

_PARTITIONS = "unknown data, probably partitions"
_NOTHING_FOUND = 2  # blkid(8): no such token, or no device identified
_CORRECTED, _UNCORRECTED = 1, 4  # fsck(8)
_FSTYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")

# What mkfs of each file system takes to go on without a question; -m0: no blocks for root only.
_MKFS = {"ext3": ("-F", "-m0"), "ext4": ("-F", "-m0"), "xfs": ("-f",)}


def format_and_mount(
    tools: Tools,
    mounter: Mounter,
    device: Path,
    target: Path,
    fstype: str = "",
    options: Iterable[str] = (),
) -> None:
    """Mount a device at a directory; give it a file system first if it has nothing on it.

    With the option `ro` it is neither formatted nor checked.

    Raises OSError, `FilesystemMismatchError` and `MissingToolError` among them, and ValueError.

    Args:
        tools: the host's programs.
        mounter: the kernel's mounts.
        device: of the block device.
        target: the directory.
        fstype: such as `xfs`; "": ext4.
        options: of the mount.
    """
    fstype, options = fstype or DEFAULT_FSTYPE, list(options)
    if _FSTYPE.fullmatch(fstype) is None:
        raise ValueError(f'"{fstype}" is not a file system type')
    found, read_only = disk_format(tools, device), "ro" in options
    if not found:
        if read_only:
            raise OSError(
                f"cannot mount unformatted disk {device} as we are manipulating it in "
                "read-only mode"
            )
        _format(tools, device, target, fstype, options)
    elif not read_only:
        _check(tools, device)
    try:
        mounter.mount_device(str(device), target, fstype, [*options, "defaults"])
    except OSError as exc:
        if found and found != fstype:
            text = f"{exc}: the volume has fsType {fstype}, but {device} has {found}"
            raise FilesystemMismatchError(text) from exc
        raise


def disk_format(tools: Tools, device: Path) -> str:
    """Return the file system on a device; "" if nothing is on it.

    A partition table counts as a file system of an unknown type. Raises OSError.
    """
    done = tools.run("blkid", "-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "export", str(device))
    if done.code == _NOTHING_FOUND:
        # Also what blkid says of a device that it cannot open.
        with open(device, "rb"):
            return ""
    if done.code != 0:
        raise _format_error(device, done.failure)
    found: dict[str, str] = {}
    for line in done.output.splitlines():
        name, equals, value = line.partition("=")
        if line and not equals:
            raise _format_error(device, f"blkid returns invalid output: {done.excerpt}")
        found[name] = value
    if found.get("PTTYPE"):
        return _PARTITIONS
    return found.get("TYPE", "")


def _format_error(device: Path, cause: str) -> OSError:
    return OSError(f"failed to get disk format of disk {device}: {cause}")


def _format(tools: Tools, device: Path, target: Path, fstype: str, options: list[str]) -> None:
    log.info("volume.format", device=str(device), fstype=fstype)
    done: ToolResult = tools.run(
        f"mkfs.{fstype}", *_MKFS.get(fstype, ()), str(device), limit=FORMAT_LIMIT
    )
    if done.code != 0:
        raise OSError(
            f'format of disk "{device}" failed: type:("{fstype}") target:("{target}") '
            f'options:("{",".join(options)}") errcode:({done.ending}) output:({done.excerpt}) '
        )


def _check(tools: Tools, device: Path) -> None:
    """Repair what fsck repairs without a question. Raises OSError if errors are left."""
    try:
        done = tools.run("fsck", "-a", str(device), limit=FORMAT_LIMIT)
    except MissingToolError as exc:
        log.warning("volume.fsck_missing", device=str(device), error=str(exc))
        return
    if done.code == _CORRECTED:
        log.info("volume.fsck_corrected", device=str(device))
    elif done.code == _UNCORRECTED:
        raise OSError(
            f"'fsck' found errors on device {device} but could not correct them: {done.excerpt}"
        )
    elif done.code != 0:
        # Such as 8, an operational error: the Go kubelet mounts all the same.
        log.warning("volume.fsck_failed", device=str(device), error=done.failure)
