"""The places of disks on the node: which there are, who uses them, and how they go.

A place is in use as long as the mount table shows its file system somewhere else, or as a pod has
an entry in it. Everything here blocks.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Protocol

from kubelet_trio.model import remove_empty
from kubelet_trio.volumes.block import DeviceMaps
from kubelet_trio.volumes.errors import VolumeError
from kubelet_trio.volumes.layout import ready_file, volumes_dir
from kubelet_trio.volumes.mounter import Mounter
from kubelet_trio.volumes.mountinfo import MountPoint

MAPS = "volumeDevices"  # the directory of raw block volumes, of pods and of plugins


class PlacedKind(Protocol):
    """Where one kind of disk has its places."""

    @property
    def places(self) -> str:
        """The pattern of places below the plugin's directory, such as `iface-*/*`."""
        ...

    @property
    def map_places(self) -> str:
        """The pattern of places of raw devices below `volumeDevices`."""
        ...

    @property
    def files(self) -> frozenset[str]:
        """Names of the files that `attach` writes into a place."""
        ...

    def devices(self, place: Path) -> list[Path]:
        """Return the devices of an attached disk: a multipath device and the disks below it."""
        ...


@dataclass(frozen=True, slots=True)
class DiskPlaces:
    """The places of one kind of disk.

    Attributes:
        kind: that kind.
        escaped: its plugin's name as a directory, `kubernetes.io~<kind>`.
        base: the plugin's directory.
        map_base: the directory of raw devices.
        pods_dir: the directory of all pods.
        mounter: the kernel's mounts.
        maps: the entries of pods for raw devices.
    """

    kind: PlacedKind
    escaped: str
    base: Path
    map_base: Path
    pods_dir: Path
    mounter: Mounter
    maps: DeviceMaps

    def tear_down(self, pod_dir: Path) -> tuple[list[Path], list[VolumeError]]:
        """Unmount and unmap everything; return the places that the pod has used."""
        places: list[Path] = []
        errors: list[VolumeError] = []
        for target in _entries(volumes_dir(pod_dir) / self.escaped):
            try:
                devices = {m.device for m in self.mounts_at(target) if m.device}
                for _ in self.mounts_at(target):
                    self.mounter.unmount(target)
                remove_empty(target)
                ready_file(pod_dir, self.escaped, target.name).unlink(missing_ok=True)
                places += [p for p in self._places() if devices & self._devices_at(p)]
            except OSError as exc:
                errors.append(teardown_error(target, exc))
        # Their names differ from those of the places.
        for link in _entries(pod_dir / MAPS / self.escaped):
            link.unlink(missing_ok=True)
        for place in self._map_places():
            try:
                if os.path.lexists(place / pod_dir.name):
                    self.maps.unmap(place / pod_dir.name, pod_dir / MAPS / self.escaped)
                    places.append(place)
            except OSError as exc:
                errors.append(_error("UnmapVolume.TearDownDevice", place, exc))
        for parent in (volumes_dir(pod_dir), pod_dir / MAPS):
            remove_empty(parent / self.escaped)
            remove_empty(parent)
        return places, errors

    def unused(self) -> tuple[list[Path], list[VolumeError]]:
        """Return the places that no pod uses; unmap the entries of lost pods."""
        errors: list[VolumeError] = []
        for place in self._map_places():
            # Entries of pods that lost their directory, with the link in it.
            gone = [e for e in self._pods_in(place) if not (self.pods_dir / e.name).is_dir()]
            for entry in gone:
                try:
                    self.maps.unmap(entry, self.pods_dir / entry.name / MAPS)
                except OSError as exc:
                    errors.append(_error("UnmapVolume.TearDownDevice", place, exc))
        places = [p for p in (*self._places(), *self._map_places()) if not self.is_used(p)]
        return places, errors

    def is_used(self, place: Path) -> bool:
        """Whether a pod uses a place. Raises OSError."""
        if self._is_map(place):
            return bool(self._pods_in(place))
        devices = self._devices_at(place)
        return any(m.device in devices and m.path != str(place) for m in self.mounter.mounts())

    def is_disk_used(self, place: Path) -> bool:
        """Whether something else uses the disk: raw and mounted, or an administrator."""
        if self._is_map(place):
            other = self.base / place.relative_to(self.map_base)
        else:
            other = self.map_base / place.relative_to(self.base)
        if os.path.lexists(other):
            return True
        devices = self.kind.devices(place)
        names = {name for d in devices for name in (str(d), os.path.realpath(d), _number(d))}
        return any({m.device, m.source} & names for m in self.mounter.mounts())

    def unmount(self, place: Path) -> None:
        """Unmount everything at a place. Raises OSError."""
        for _ in self.mounts_at(place):
            self.mounter.unmount(place)

    def remove(self, place: Path) -> None:
        """Remove a place and its empty parents. Raises OSError if anything else is in it."""
        for name in self.kind.files:
            (place / name).unlink(missing_ok=True)
        if place.is_dir():
            place.rmdir()
        base = self.map_base.parent if self._is_map(place) else self.base
        for parent in place.relative_to(base).parents:
            if parent.name and not _entries(base / parent):
                remove_empty(base / parent)

    def _places(self) -> list[Path]:
        found = directories(self.base, self.kind.places)
        return [place for place in found if not self._is_map(place)]

    def _map_places(self) -> list[Path]:
        return directories(self.map_base, self.kind.map_places)

    def _is_map(self, place: Path) -> bool:
        return place.is_relative_to(self.map_base)

    def _pods_in(self, place: Path) -> list[Path]:
        return [entry for entry in _entries(place) if entry.name not in self.kind.files]

    def mounts_at(self, path: Path) -> list[MountPoint]:
        return [mount for mount in self.mounter.mounts() if mount.path == str(path)]

    def _devices_at(self, place: Path) -> set[str]:
        return {mount.device for mount in self.mounts_at(place) if mount.device}


def directories(base: Path, pattern: str) -> list[Path]:
    """Return the directories at a pattern, without a look at them: a lost disk answers with EIO."""
    found = [base]
    for part in pattern.split("/"):
        found = [
            Path(entry.path)
            for parent in found
            for entry in _scan(parent)
            if entry.is_dir(follow_symlinks=False) and fnmatchcase(entry.name, part)
        ]
    return sorted(found)


def places_below(base: Path, pattern: str) -> list[Path]:
    """Return the places of a kind below its plugin's directory, those of raw devices among them."""
    found = [
        place for place in directories(base, pattern) if place.relative_to(base).parts[0] != MAPS
    ]
    return [*found, *directories(base / MAPS, pattern)]


def _scan(directory: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as entries:
            return list(entries)
    except FileNotFoundError:
        return []


def _entries(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except FileNotFoundError:
        return []


def _number(device: Path) -> str:
    """Return a device's number as in the mount table; "" if it is gone."""
    try:
        found = device.stat().st_rdev
    except OSError:
        return ""
    return f"{os.major(found)}:{os.minor(found)}"


def teardown_error(target: Path, cause: OSError) -> VolumeError:
    """Return the error for a volume of a pod that cannot be undone."""
    return _error("UnmountVolume.TearDown", target, cause)


def _error(operation: str, path: Path, cause: OSError) -> VolumeError:
    return VolumeError(path.name, f'{operation} failed for volume "{path.name}" : {cause}')
