"""`local` persistent volumes: a directory of the node, or a block device of it.

A directory is bind-mounted into the pod. A block device gets a file system if it has none, and is
mounted once for the node, at `plugins/kubernetes.io/local-volume/mounts/<volume>`; or its pods get
the device itself (volumeMode Block). As pkg/volume/local in the Go kubelet.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path, PurePath

from kubelet_trio.volumes.host.disks import DiskVolumes, safe_name
from kubelet_trio.volumes.host.plugins import PluginContext
from kubelet_trio.volumes.spec import VolumeSpec

# Unlike every other plugin's: GetGlobalMapPath of pkg/volume/local escapes the plugin's name.
MAP_DIR = Path("plugins/kubernetes.io~local-volume/volumeDevices")


@dataclass(frozen=True, slots=True)
class LocalDisk:
    """The `DiskKind` of local volumes: the device is there, and stays."""

    context: PluginContext
    plugin: str = "local-volume"
    places: str = "mounts/*"
    map_places: str = "*"
    files: frozenset[str] = frozenset()
    owned_once: bool = True  # SetUpAt in pkg/volume/local: the first pod's fsGroup stays

    def name(self, spec: VolumeSpec) -> PurePath:
        return PurePath("mounts") / safe_name("persistent volume", spec.disk_name)

    def map_name(self, spec: VolumeSpec) -> PurePath:
        return PurePath(safe_name("persistent volume", spec.disk_name))

    def directory(self, spec: VolumeSpec) -> Path | None:
        path = _path(spec)
        try:
            mode = path.stat().st_mode
        except (FileNotFoundError, NotADirectoryError) as exc:
            raise ValueError(f'path "{path}" does not exist') from exc
        if stat.S_ISDIR(mode):
            return path
        if not stat.S_ISBLK(mode):
            raise ValueError(f'path "{path}": only directory and block device are supported')
        return None

    async def attach(self, spec: VolumeSpec, place: Path) -> Path:
        path = _path(spec)
        # The device itself: by another name the mount table would not show that it is in use.
        return Path(await self.context.run(os.path.realpath, path))

    def devices(self, place: Path) -> list[Path]:
        return []

    async def rescan(self, spec: VolumeSpec) -> None:
        """Do nothing: what resizes a local device tells the kernel."""

    async def detach(self, place: Path) -> None:
        """Nothing: the device stays."""


def _path(spec: VolumeSpec) -> Path:
    path = Path("/", spec.source.path)
    if ".." in path.parts:
        raise ValueError(f"invalid path: {path} must not contain '..'")
    return path


def make_local(context: PluginContext) -> DiskVolumes:
    """Return the plugin of `local` volumes."""
    return DiskVolumes(context, LocalDisk(context), context.root_dir / MAP_DIR)
