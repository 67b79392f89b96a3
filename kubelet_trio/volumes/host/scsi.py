"""SCSI and multipath devices, as sysfs and /dev show them. All of it blocks.

Paths and formats are the kernel's (Documentation/ABI in Linux; scsi_transport_iscsi.c, scsi_scan.c)
and udev's (60-persistent-storage.rules).
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from kubelet_trio.model import get_logger
from kubelet_trio.volumes.tools import Tools

log = get_logger()

_HOST = re.compile(r"host([0-9]+)")


@dataclass(frozen=True, slots=True)
class ScsiDevices:
    """The machine's SCSI devices; the arguments are for tests."""

    sys: Path = Path("/sys")
    dev: Path = Path("/dev")

    def multipath(self, device: Path) -> Path | None:
        """Return the multipath device that a disk is a path of; a dm device is its own."""
        real = Path(os.path.realpath(device))
        if real.parent != self.dev:
            return None
        if real.name.startswith("dm-"):
            return real
        for name in _names(self.sys / "block"):
            if name.startswith("dm-") and real.name in _names(self.sys / "block" / name / "slaves"):
                return self.dev / name
        return None

    def paths(self, multipath: Path) -> list[Path]:
        """Return the disks below a multipath device."""
        return [self.dev / name for name in _names(self.sys / "block" / multipath.name / "slaves")]

    def delete(self, device: Path) -> None:
        """Remove a disk from the kernel's SCSI devices; one that is gone is no error.

        Raises OSError.
        """
        _write_if_there(self.sys / "block" / device.name / "device" / "delete", "1")

    def rescan(self, device: Path) -> None:
        """Have the kernel read a disk's size again, unless the disk is gone. Raises OSError."""
        _write_if_there(self.sys / "block" / device.name / "device" / "rescan", "1")

    def scan_lun(self, host: int, lun: int) -> None:
        """Look for one LUN of an iSCSI session. Raises OSError.

        For one only: the kernel would not notice when another, which no volume uses, is deleted.
        """
        # Channel and target of an iSCSI session are always 0.
        _write(self.sys / f"class/scsi_host/host{host}/scan", f"0 0 {lun}")

    def scan_all(self) -> None:
        """Look for new disks behind every SCSI host, as far as it can."""
        for name in _names(self.sys / "class/scsi_host"):
            try:
                _write_if_there(self.sys / "class/scsi_host" / name / "scan", "- - -")
            except OSError as exc:
                log.warning("scsi.scan_failed", host=name, error=str(exc))

    def portal_hosts(self, iqn: str) -> dict[str, int]:
        """Return the SCSI host number of each portal (`10.0.0.1:3260`) logged in to a target."""
        found: dict[str, int] = {}
        for host, session in self._sessions(iqn):
            for name in _names(session):
                if not name.startswith("connection"):
                    continue
                place = session / name / "iscsi_connection" / name
                # The portal in use, and the one that was asked for: a target can redirect.
                for prefix in ("", "persistent_"):
                    address = _read(place / f"{prefix}address")
                    port = _read(place / f"{prefix}port")
                    if address and port:
                        found[_portal(address, port)] = host
        return found

    def lun_devices(self, iqn: str, lun: int) -> list[Path]:
        """Return the disks of a target's LUN, one for each session."""
        found = []
        for host, session in self._sessions(iqn):
            block = session / f"target{host}:0:0" / f"{host}:0:0:{lun}" / "block"
            found += [self.dev / name for name in _names(block)[:1]]
        return found

    def _sessions(self, iqn: str) -> Iterator[tuple[int, Path]]:
        hosts = self.sys / "class/iscsi_host"
        for name in _names(hosts):
            number = _HOST.fullmatch(name)
            if number is None:
                continue
            device = hosts / name / "device"
            for session in _names(device):
                if not session.startswith("session"):
                    continue
                target = device / session / "iscsi_session" / session / "targetname"
                if _read(target) == iqn:
                    yield int(number[1]), device / session


def rescan_disks(scsi: ScsiDevices, tools: Tools, devices: Iterable[Path]) -> None:
    """Have the kernel read the size of disks again, and then of multipath devices above them.

    Raises OSError, `MissingToolError` among them.
    """
    # A multipath device takes the new size only once all its paths have it.
    for device in sorted(devices, key=lambda device: device.name.startswith("dm-")):
        if not device.name.startswith("dm-"):
            scsi.rescan(device)
            continue
        done = tools.run("multipathd", "resize", "map", device.name)
        if done.code != 0:
            raise OSError(f"failed to resize multipath device {device}: {done.failure}")


def _portal(address: str, port: str) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _names(directory: Path) -> list[str]:
    # A device may go away while the tree is read, and with it the directory.
    try:
        return sorted(os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _read(path: Path) -> str:
    """Return an attribute; "" if the device is gone."""
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""


def _write(path: Path, text: str) -> None:
    # Never created, and not read: some attributes can only be written.
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def _write_if_there(path: Path, text: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        _write(path, text)
