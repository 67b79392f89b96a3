"""Block devices of the host, and loop devices: a file as a device, or a device that is held open.

A loop device outlives the process that attached it, so it holds a pod's device open while no agent
runs. It is found again by its backing file in sysfs. The kernel is asked through ioctl(2), as
losetup(8) does; the host needs no program. All of it blocks.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
from pathlib import Path
from typing import Protocol

# linux/loop.h; loop(4).
_SET_FD = 0x4C00
_CLR_FD = 0x4C01
_GET_FREE = 0x4C82

_CONTROL = Path("/dev/loop-control")
_SYSFS = Path("/sys/block")
_NAME = re.compile(r"loop[0-9]+")
_DELETED = "(deleted)"  # sysfs appends it if the backing file is unlinked
_ATTEMPTS = 16  # others may take the free device between the two calls

# A loop device without a backing file, or without a device node.
_GONE = frozenset((errno.ENODEV, errno.ENOENT, errno.ENXIO))
# A host on which loop devices do not work at all: no module, no device nodes, no right.
_UNAVAILABLE = frozenset((errno.EACCES, errno.ENODEV, errno.ENOENT, errno.ENXIO, errno.EPERM))


class LoopUnavailableError(OSError):
    """This host gives the agent no loop devices."""


class BlockDevices(Protocol):
    """The block devices of a machine."""

    def number(self, path: Path) -> int:
        """Return the device number of a block device; links are followed.

        Raises ValueError if the path is something else, and OSError.
        """
        ...

    def attach(self, backing: Path, *, read_only: bool = False) -> Path:
        """Return the loop device of a file or block device; a new one, unless it has one.

        Raises `LoopUnavailableError`, and OSError.
        """
        ...

    def find(self, backing: Path) -> list[Path]:
        """Return the loop devices of a file or block device. Raises OSError."""
        ...

    def detach(self, backing: Path) -> None:
        """Detach the loop devices of a file or block device. Idempotent. Raises OSError.

        One that others have open goes when they close it.
        """
        ...


class KernelBlockDevices:
    """The `BlockDevices` of this machine."""

    def number(self, path: Path) -> int:
        found = path.stat()
        if not stat.S_ISBLK(found.st_mode):
            raise ValueError(f'path "{path}" is no block device')
        return found.st_rdev

    def attach(self, backing: Path, *, read_only: bool = False) -> Path:
        for found in self.find(backing):
            return found
        mode = os.O_RDONLY if read_only else os.O_RDWR
        # Checked first: the open of a FIFO could block, and that of another device act on it.
        kind = backing.stat().st_mode
        if not stat.S_ISREG(kind) and not stat.S_ISBLK(kind):
            raise OSError(errno.EINVAL, "neither a file nor a block device", str(backing))
        file = os.open(backing, mode | os.O_CLOEXEC)
        try:
            return _attach(file, mode)
        finally:
            os.close(file)

    def find(self, backing: Path) -> list[Path]:
        names = _names_of(backing)
        # The name decides, as in the Go kubelet (getLoopDeviceFromSysfs): every bind mount of a
        # device has the same device number.
        return [Path("/dev") / name for name in _loop_names() if _backing_file(name) in names]

    def detach(self, backing: Path) -> None:
        names = _names_of(backing)
        for device in self.find(backing):
            _detach(device, names)


def _names_of(backing: Path) -> frozenset[str]:
    return frozenset((str(backing), os.path.realpath(backing)))


def _detach(device: Path, names: frozenset[str]) -> None:
    try:
        loop = os.open(device, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as exc:
        if exc.errno in _GONE:
            return
        raise
    try:
        # Read again: while it is open here, no one can detach it and attach another file to it.
        if _backing_file(device.name) in names:
            fcntl.ioctl(loop, _CLR_FD, 0)
    except OSError as exc:
        if exc.errno not in _GONE:
            raise
    finally:
        os.close(loop)


def _attach(file: int, mode: int) -> Path:
    for _ in range(_ATTEMPTS):
        device = _free_device()
        try:
            loop = os.open(device, mode | os.O_CLOEXEC)
        except OSError as exc:
            raise _unavailable(exc) from exc
        try:
            fcntl.ioctl(loop, _SET_FD, file)
        except OSError as exc:
            if exc.errno != errno.EBUSY:
                raise _unavailable(exc) from exc
        else:
            return device
        finally:
            os.close(loop)
    raise OSError(errno.EBUSY, "others take every loop device that becomes free")


def _free_device() -> Path:
    try:
        control = os.open(_CONTROL, os.O_RDWR | os.O_CLOEXEC)
        try:
            number = fcntl.ioctl(control, _GET_FREE, 0)
        finally:
            os.close(control)
    except OSError as exc:
        raise _unavailable(exc) from exc
    return Path(f"/dev/loop{number}")


def _unavailable(exc: OSError) -> OSError:
    if exc.errno not in _UNAVAILABLE:
        return exc
    return LoopUnavailableError(
        exc.errno,
        f"no loop device: {exc.strerror} (it needs the kernel's module loop, {_CONTROL} and root)",
    )


def _loop_names() -> list[str]:
    try:
        return sorted(name for name in os.listdir(_SYSFS) if _NAME.fullmatch(name))
    except FileNotFoundError:
        return []


def _backing_file(name: str) -> str | None:
    """Return the path that a loop device was attached to; None if it is free."""
    try:
        text = (_SYSFS / name / "loop/backing_file").read_text("utf-8", "surrogateescape")
    except OSError as exc:
        # Between the listing and the read it can be detached, or vanish.
        if exc.errno in _GONE:
            return None
        raise
    return text.removesuffix("\n").removesuffix(_DELETED).rstrip(" ")
