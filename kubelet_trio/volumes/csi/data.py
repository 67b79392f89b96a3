"""Records of CSI volumes on disk, `vol_data.json`, in the Go kubelet's layout and format.

    pods/<uid>/volumes/kubernetes.io~csi/<name>/vol_data.json       of a published volume
                                               /mount               its target path
    plugins/kubernetes.io/csi/<driver>/<hash>/vol_data.json         of a staged volume
                                             /globalmount           its staging path

A record is written before the driver is called and removed after the driver has undone the call.
So whatever a driver may have mounted has a record, and teardown needs nothing else.

Source: saveVolumeData, loadVolumeData, makeDeviceMountPath and MountDevice in pkg/volume/csi.
All of it blocks.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from kubelet_trio.containers import make_directories
from kubelet_trio.model import JSON_ERRORS, read_regular, sha256, write_aside
from kubelet_trio.volumes.csi.types import CSI_PLUGIN, CsiVolume
from kubelet_trio.volumes.layout import CSI, VOLUME_DEVICES, volumes_dir

RECORD = "vol_data.json"
MOUNT = "mount"
GLOBAL_MOUNT = "globalmount"
_GROUP, _ATTACH = "volumeMountGroup", "attachRequired"
EPHEMERAL, PERSISTENT = "Ephemeral", "Persistent"

_MOST_BYTES = 64 << 10  # a handle has at most 128 bytes by the specification; drivers exceed it
# The name of a driver by GetPluginInfo in the specification; it becomes a directory's name.
_DRIVER = re.compile(r"[A-Za-z0-9]([-.A-Za-z0-9]{0,61}[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True)
class VolumeRecord:
    """A `vol_data.json`."""

    volume: CsiVolume
    name: str = ""  # specVolID: the volume's name in the pod, or the persistent volume's
    node: str = ""
    lifecycle: str = ""  # volumeLifecycleMode: Ephemeral or Persistent
    selinux: str = ""  # seLinuxMountContext
    # The group that it was staged with, "" without one; None: unknown, or the driver sets none.
    group: str | None = None
    is_attachable: bool = True  # False: nobody attaches it; True is also what records do not tell

    def to_json(self, *, is_published: bool) -> bytes:
        """Return the file's content, with the keys that the Go kubelet writes there."""
        data = {"volumeHandle": self.volume.handle, "driverName": self.volume.driver}
        if is_published:
            data |= {
                "specVolID": self.name,
                "nodeName": self.node,
                "attachmentID": self.volume.attachment_name(self.node),
            }
        if is_published and self.lifecycle:  # not of block devices
            data["volumeLifecycleMode"] = self.lifecycle
        if self.selinux:
            data["seLinuxMountContext"] = self.selinux
        # Both for the next agent; the Go kubelet skips keys that it does not know.
        if self.group is not None:
            data[_GROUP] = self.group
        if not self.is_attachable:
            data[_ATTACH] = "false"
        # As encoding/json writes a map: sorted keys, no spaces, a newline at the end.
        return msgspec.json.encode(dict(sorted(data.items()))) + b"\n"


@dataclass(frozen=True, slots=True)
class Published:
    """A volume that is, or may be, published to a pod."""

    directory: Path  # pods/<uid>/volumes/kubernetes.io~csi/<name>
    record: VolumeRecord | None  # None: there is none, or it cannot be read
    problem: str = ""  # why it cannot be read
    is_damaged: bool = False  # it exists, but cannot be read

    @property
    def target(self) -> Path:
        return self.directory / MOUNT


@dataclass(frozen=True, slots=True)
class Staged:
    """A volume that is, or may be, staged."""

    directory: Path  # plugins/kubernetes.io/csi/<driver>/<hash>
    record: VolumeRecord | None
    problem: str = ""
    is_damaged: bool = False

    @property
    def path(self) -> Path:
        return self.directory / GLOBAL_MOUNT


def check_driver_name(name: str) -> None:
    """Raise ValueError for a name that no driver may have, such as one with a slash.

    Beside the directories of drivers there is one for the block volumes of all of them.
    """
    if not _DRIVER.fullmatch(name) or name == VOLUME_DEVICES:
        raise ValueError(f"{name!r} is no name of a CSI driver")


def publish_dir(pod_dir: Path, name: str) -> Path:
    """Return the directory of a pod's volume."""
    return volumes_dir(pod_dir) / CSI / escaped_name(name)


def escaped_name(name: str) -> str:
    """Return the directory's name for a volume (EscapeQualifiedName in k8s.io/utils/strings)."""
    return name.replace("/", "~")


def stage_dir(root_dir: Path, volume: CsiVolume) -> Path:
    """Return the directory of a staged volume. Raises ValueError as `check_driver_name`."""
    check_driver_name(volume.driver)
    handle = sha256(volume.handle.encode()).hexdigest()
    return _staged_dir(root_dir) / volume.driver / handle


def inline_handle(uid: str, name: str) -> str:
    """Return the handle of an inline volume (makeVolumeHandle in pkg/volume/csi)."""
    return f"csi-{sha256((uid + name).encode()).hexdigest()}"


def write_record(directory: Path, record: VolumeRecord, *, is_published: bool) -> None:
    """Write a record, and its directory. Raises OSError."""
    make_directories(directory)
    content = record.to_json(is_published=is_published)
    # `sync`: the driver's mount may survive where an unwritten record does not, such as a stage
    # on a device that the driver reserves by itself.
    write_aside(directory / RECORD, content, mode=0o644, sync=True)


def read_record(directory: Path) -> VolumeRecord:
    """Read a record. Raises FileNotFoundError, OSError, or ValueError if it is damaged."""
    path = directory / RECORD
    try:
        data = msgspec.json.decode(read_regular(path, _MOST_BYTES), type=dict[str, Any])
    except JSON_ERRORS as exc:
        raise ValueError(f"{path} is damaged: {exc}") from exc
    text = {key: value for key, value in data.items() if isinstance(value, str)}
    driver, handle = text.get("driverName", ""), text.get("volumeHandle", "")
    if not handle:
        raise ValueError(f"{path} is damaged: it names no volume")
    check_driver_name(driver)
    return VolumeRecord(
        CsiVolume(driver, handle),
        text.get("specVolID", ""),
        text.get("nodeName", ""),
        text.get("volumeLifecycleMode", ""),
        text.get("seLinuxMountContext", ""),
        text.get(_GROUP),
        is_attachable=text.get(_ATTACH) != "false",
    )


def published_of(pod_dir: Path) -> list[Published]:
    """Return the volumes that a pod has on disk. Raises OSError."""
    return [
        Published(directory, *_read(directory)) for directory in _below(volumes_dir(pod_dir) / CSI)
    ]


def published_everywhere(pods_dir: Path) -> Iterator[Published]:
    """Yield the volumes that pods have on disk. Raises OSError."""
    for pod_dir in _below(pods_dir):
        yield from published_of(pod_dir)


def staged_at(directory: Path) -> Staged:
    """Read the record of a staged volume."""
    return Staged(directory, *_read(directory))


def staged_volumes(root_dir: Path) -> list[Staged]:
    """Return the staged volumes on disk. Raises OSError."""
    return [
        staged_at(directory)
        for driver in _below(_staged_dir(root_dir))
        # Block devices have a layout of their own: see csi/block.py.
        if driver.name != VOLUME_DEVICES
        for directory in _below(driver)
    ]


def volumes_on_disk(root_dir: Path) -> frozenset[CsiVolume]:
    """Return the volumes that may be attached. Raises OSError.

    Not inline ones, nor those of drivers that say `attachRequired: false`: the node's
    `volumesInUse` lists attachable volumes only (GetVolumesInUse in pkg/kubelet/volumemanager).
    """
    records = [
        *(found.record for found in published_everywhere(root_dir / "pods")),
        *(found.record for found in staged_volumes(root_dir)),
        # Of block devices: both what is staged and what is published has this record.
        *(_read(found / "data")[0] for found in _below(_staged_dir(root_dir) / VOLUME_DEVICES)),
    ]
    found = [r for r in records if r is not None and r.lifecycle != EPHEMERAL]
    others = frozenset(r.volume for r in found if not r.is_attachable)
    return frozenset(r.volume for r in found) - others


def damaged_records(root_dir: Path) -> list[str]:
    """Return why records of volumes that may be attached cannot be read. Raises OSError."""
    directories = [
        *(found.directory for found in published_everywhere(root_dir / "pods")),
        *(found.directory for found in staged_volumes(root_dir)),
        *(found / "data" for found in _below(_staged_dir(root_dir) / VOLUME_DEVICES)),
    ]
    # Without a record no driver has been called.
    return [
        problem
        for directory in directories
        for problem in [_read(directory)[1]]
        if problem and os.path.lexists(directory / RECORD)
    ]


def _staged_dir(root_dir: Path) -> Path:
    return root_dir / "plugins" / CSI_PLUGIN


def _read(directory: Path) -> tuple[VolumeRecord | None, str, bool]:
    """Return the record, why it cannot be read, and whether it is damaged."""
    try:
        return read_record(directory), "", False
    except FileNotFoundError:
        return None, f"{directory / RECORD} does not exist", False
    except (OSError, ValueError) as exc:
        return None, str(exc), True


def _below(directory: Path) -> list[Path]:
    """Return the subdirectories of a directory, without links; none if it does not exist."""
    try:
        with os.scandir(directory) as entries:
            return sorted(Path(e.path) for e in entries if e.is_dir(follow_symlinks=False))
    except (FileNotFoundError, NotADirectoryError):
        return []
