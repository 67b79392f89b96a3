"""Maps block devices into pods, in the Go kubelet's layout.

    plugins/<plugin>/volumeDevices/.../<uid>           entry: the device, bind-mounted for a pod
    pods/<uid>/volumeDevices/<plugin>/<volume>         link: to the device, for the runtime
    a read-only loop device attached to the entry      lock: holds the device open

Without the lock the kernel could give the number of a lost device to another one, while containers
still have it (MapBlockVolume in pkg/volume/util). Nothing is kept in memory: entries, links and
sysfs show what is mapped, whichever agent mapped it.
"""

from __future__ import annotations

import os
from pathlib import Path

from kubelet_trio.containers import make_directories
from kubelet_trio.model import get_logger, remove_empty
from kubelet_trio.volumes.loop import BlockDevices, KernelBlockDevices, LoopUnavailableError
from kubelet_trio.volumes.mounter import Mounter

log = get_logger()

_FILE = 0o640  # the mode of an entry before the device is mounted on it


class DeviceMaps:
    """Maps devices into pods and unmaps them. Every method blocks.

    Callers let one operation at a time work on an entry.
    """

    def __init__(self, mounter: Mounter, devices: BlockDevices | None = None) -> None:
        """`devices`: the host's block devices; None: the kernel's."""
        self._mounter = mounter
        self._devices = devices or KernelBlockDevices()
        self._has_warned = False  # that devices are not held open

    def map(self, device: Path, entry: Path, link: Path) -> None:
        """Map a device. Idempotent; it replaces the map of another device.

        Raises OSError, and ValueError if it is no block device.
        """
        # The runtime gets a path that does not change with links such as /dev/disk/by-id.
        device = Path(os.path.realpath(device, strict=True))
        number = self._devices.number(device)
        make_directories(link.parent)
        make_directories(entry.parent)
        if self._is_bound(entry) and self._number(entry) != number:
            self._unbind(entry)  # the device that a lost disk had
        if not self._is_bound(entry):
            entry.touch(_FILE)
            self._mounter.bind(str(device), entry)
        if not link.is_symlink() or os.readlink(link) != str(device):
            link.unlink(missing_ok=True)
            link.symlink_to(device)
        self._hold(entry)

    def is_mapped(self, entry: Path, link: Path) -> bool:
        """Whether the device is there for containers; after a reboot it is not. Raises OSError."""
        return link.is_symlink() and link.exists() and self._is_bound(entry)

    def unmap(self, entry: Path, link: Path) -> None:
        """Undo `map`, in the opposite order; a part that does not exist is skipped.

        Raises OSError.
        """
        self.release(entry)
        entry.unlink(missing_ok=True)
        if link.is_symlink():
            link.unlink()
            for parent in (link.parent, link.parent.parent):
                remove_empty(parent)

    def release(self, entry: Path) -> None:
        """Let go of the device, so that it can be detached; an empty entry and the link stay.

        For callers that need these as a sign that the pod may still have the volume.
        Idempotent. Raises OSError.
        """
        # It detaches the loop device first: that one keeps the mount busy.
        self._unbind(entry)

    def _hold(self, entry: Path) -> None:
        """Hold the device at an entry open, where the host can do so. Raises OSError."""
        try:
            # Read-only: it must not write, and some devices cannot be opened otherwise.
            self._devices.attach(entry, read_only=True)
        except LoopUnavailableError as exc:
            if not self._has_warned:
                self._has_warned = True
                log.warning("volume.device_not_held_open", path=str(entry), error=str(exc))

    def _number(self, entry: Path) -> int | None:
        """Return the number of the device at an entry; None for anything else. Raises OSError."""
        try:
            return self._devices.number(entry)
        except ValueError:
            return None

    def _is_bound(self, entry: Path) -> bool:
        return any(mount.path == str(entry) for mount in self._mounter.mounts())

    def _unbind(self, entry: Path) -> None:
        self._devices.detach(entry)
        # Each of several that cover each other.
        for mount in self._mounter.mounts():
            if mount.path == str(entry):
                self._mounter.unmount(entry)
