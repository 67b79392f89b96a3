"""Fibre Channel volumes: found by WWN and LUN or by WWID, removed after their last user.

The fabric's zoning decides which disks the node can see; nothing is logged in to. As pkg/volume/fc
in the Go kubelet, but a disk is also removed that was unmounted without being removed before: its
place names it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from kubelet_trio.model import get_logger
from kubelet_trio.volumes.errors import MissingToolError
from kubelet_trio.volumes.host.disk_places import places_below
from kubelet_trio.volumes.host.disks import DiskVolumes, safe_name
from kubelet_trio.volumes.host.plugins import PluginContext
from kubelet_trio.volumes.host.scsi import ScsiDevices, rescan_disks
from kubelet_trio.volumes.spec import VolumeSpec

log = get_logger()


@dataclass(frozen=True, slots=True)
class FcDisk:
    """A disk by the WWNs of its targets and its LUN, or by its WWIDs."""

    wwns: tuple[str, ...] = ()
    lun: str = ""
    wwids: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of its place: `<wwn>-<wwn>-lun-<lun>` or `<wwid>-<wwid>`."""
        if self.wwns:
            return f"{'-'.join(self.wwns)}-lun-{self.lun}"
        return "-".join(self.wwids)


def fc_disk(spec: VolumeSpec) -> FcDisk:
    """Return the disk that a volume asks for. Raises ValueError."""
    source = spec.source
    if source.targetWWNs and source.lun is not None:
        return FcDisk(wwns=tuple(source.targetWWNs), lun=str(source.lun))
    if source.wwids:
        # udev writes an underscore for a space.
        return FcDisk(wwids=tuple(wwid.replace(" ", "_") for wwid in source.wwids))
    raise ValueError("fc: no fc disk information found: targetWWNs and lun, or wwids, are needed")


def named_disk(name: str) -> FcDisk:
    """Return the disk of a place by its name (parsePDName)."""
    parts = name.split("-")
    if len(parts) > 2 and parts[-2] == "lun" and parts[-1].isdecimal():
        return FcDisk(wwns=tuple(parts[:-2]), lun=parts[-1])
    return FcDisk(wwids=tuple(parts))


@dataclass(frozen=True, slots=True)
class FcDisks:
    """The `DiskKind` of Fibre Channel volumes."""

    context: PluginContext
    scsi: ScsiDevices = field(default_factory=ScsiDevices)
    plugin: str = "fc"
    places: str = "*"
    map_places: str = "*"
    files: frozenset[str] = frozenset()
    owned_once: bool = False

    def name(self, spec: VolumeSpec) -> PurePath:
        return PurePath(safe_name("FC disk", fc_disk(spec).name))

    def map_name(self, spec: VolumeSpec) -> PurePath:
        return self.name(spec)

    def directory(self, spec: VolumeSpec) -> Path | None:
        return None

    async def attach(self, spec: VolumeSpec, place: Path) -> Path:
        """Find the disk, with a scan of all SCSI hosts unless its multipath device is there.

        Raises OSError if there is no such disk, ValueError.
        """
        disk, run = fc_disk(spec), self.context.run
        found = await run(self._find, disk)
        if not any(device.name.startswith("dm-") for device in found):
            await run(self.scsi.scan_all)
            found = await run(self._find, disk)
        if not found:
            raise OSError("no fc disk found")
        return found[0]

    def devices(self, place: Path) -> list[Path]:
        return self._find(named_disk(place.name))

    async def rescan(self, spec: VolumeSpec) -> None:
        """Have every path read the size of the LUN again. Raises OSError, ValueError."""
        run = self.context.run
        devices = await run(self._find, fc_disk(spec))
        await run(rescan_disks, self.scsi, self.context.tools, devices)

    async def detach(self, place: Path) -> None:
        """Flush the disk and remove it from the kernel. Raises OSError if it is busy."""
        run = self.context.run
        for device in await run(self.devices, place):
            if device.name.startswith("dm-"):
                done = await run(self.context.tools.run, "multipath", "-f", str(device))
                if done.code != 0:
                    text = f"failed to flush multipath device {device}: {done.failure}"
                    raise OSError(f"fc: failed to detach disk: {text}")
                continue
            await self._flush(device)
            await run(self.scsi.delete, device)

    async def _flush(self, device: Path) -> None:
        arguments = ("--flushbufs", str(device))
        try:
            done = await self.context.run(self.context.tools.run, "blockdev", *arguments)
        except MissingToolError as exc:
            log.warning("fc.flush_failed", device=str(device), error=str(exc))
            return
        if done.code != 0:
            log.warning("fc.flush_failed", device=str(device), error=done.failure)

    def _find(self, disk: FcDisk) -> list[Path]:
        """Return the disk's devices: its multipath device first, then the disks below it."""
        disks = self._links(disk)
        found: dict[Path, None] = {}
        for device in disks:
            above = self.scsi.multipath(device)
            if above is not None:
                found[above] = None
                found.update(dict.fromkeys(self.scsi.paths(above)))
        return [*found, *(device for device in disks if device not in found)]

    def _links(self, disk: FcDisk) -> list[Path]:
        """Return the disks that udev has links to."""
        if disk.wwns:
            place = self.scsi.dev / "disk/by-path"
            patterns = [
                re.compile(rf"(pci-.*-fc|fc)-0x{re.escape(wwn)}-lun-{disk.lun}")
                for wwn in disk.wwns
            ]
        else:
            place = self.scsi.dev / "disk/by-id"
            patterns = [re.compile(f"scsi-{re.escape(wwid)}") for wwid in disk.wwids]
        try:
            names = sorted(os.listdir(place))
        except FileNotFoundError:
            return []
        links = [place / name for p in patterns for name in names if p.fullmatch(name)]
        return list(dict.fromkeys(Path(os.path.realpath(link)) for link in links if link.exists()))


def fc_unique_name(spec: VolumeSpec) -> str:
    """Return the volume's name in a node's `volumesInUse` and `volumesAttached`."""
    disk = fc_disk(spec)
    return _unique_name(disk, disk.wwns or spec.source.wwids)


def _unique_name(disk: FcDisk, names: Iterable[str]) -> str:
    # As Go prints a list.
    return f"kubernetes.io/fc/[{' '.join(names)}]" + (f":{disk.lun}" if disk.wwns else "")


def fc_on_disk(base: Path) -> frozenset[str]:
    """Return the unique names of the disks that have a place. Blocks, and raises OSError."""
    found = frozenset[str]()
    for place in places_below(base, "*"):
        disk = named_disk(place.name)
        # Of a WWID with spaces the place has underscores.
        spaced = (wwid.replace("_", " ") for wwid in disk.wwids)
        found |= {
            _unique_name(disk, disk.wwns or disk.wwids),
            _unique_name(disk, disk.wwns or spaced),
        }
    return found


def make_fibre_channel(context: PluginContext) -> DiskVolumes:
    """Return the plugin of Fibre Channel volumes."""
    return DiskVolumes(context, FcDisks(context))
