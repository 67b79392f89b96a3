"""Volumes that are somebody else's data, mounted for the pod: local and NFS.

They are unmounted when the pod goes, and nothing in them is ever removed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from kubelet_trio.containers import make_directories
from kubelet_trio.model import remove_empty
from kubelet_trio.volumes.layout import LOCAL, MARKER, NFS, ready_file, volume_dir
from kubelet_trio.volumes.mounter import Mounter
from kubelet_trio.volumes.mountinfo import MountPoint
from kubelet_trio.volumes.ownership import own_volume
from kubelet_trio.volumes.progress import Walks
from kubelet_trio.volumes.spec import VolumeSpec


@dataclass(frozen=True, slots=True)
class LocalVolume:
    """A directory of the node behind a persistent volume, bound into the pod's own."""

    pods_dir: Path
    mounter: Mounter
    walks: Walks = field(default_factory=Walks)
    managed: bool = True
    follows_objects: bool = False
    is_read_only: bool = False

    def set_up(self, spec: VolumeSpec) -> None:
        """Bind the directory, unless it is. Its group is the first pod's to set. Raises OSError.

        A marker says that the group is set: an attempt that came no further than the mount is
        taken up again.
        """
        path, ready = self.path(spec), self._ready(spec)
        if not self.is_set_up(spec):
            ready.unlink(missing_ok=True)  # of a mount that a restart of the machine took
            source = Path(spec.source.path)
            if not source.is_dir():
                raise ValueError(f'path "{source}" does not exist or is no directory')
            make_directories(path)
            if _find(self.mounter, path) is None:
                self.mounter.bind(str(source), path)
            if not spec.read_only and not self._is_shared(path):
                own_volume(
                    path,
                    spec.fs_group,
                    read_only=False,
                    policy=spec.change_policy,
                    walks=self.walks,
                )
            make_directories(ready.parent)
            ready.touch(MARKER)

    def is_set_up(self, spec: VolumeSpec) -> bool:
        """Whether it is bound and its group is set."""
        return self._ready(spec).exists() and _find(self.mounter, self.path(spec)) is not None

    def path(self, spec: VolumeSpec) -> Path:
        """Return where it is bound to."""
        return volume_dir(self.pods_dir / spec.uid, LOCAL, spec.disk_name)

    def _ready(self, spec: VolumeSpec) -> Path:
        return ready_file(self.pods_dir / spec.uid, LOCAL, spec.disk_name)

    def _is_shared(self, path: Path) -> bool:
        """Whether another pod uses the same directory, whose group is then not ours to change."""
        own = _find(self.mounter, path)
        pods = f"{self.pods_dir}/"
        return own is not None and any(
            (mount.root, mount.source) == (own.root, own.source)
            for mount in self.mounter.mounts()
            if mount.path != own.path and mount.path.startswith(pods) and f"/{LOCAL}/" in mount.path
        )


@dataclass(frozen=True, slots=True)
class NfsVolume:
    """An NFS export, inline or behind a persistent volume. fsGroup changes nothing in it."""

    pods_dir: Path
    mounter: Mounter
    managed: bool = False
    follows_objects: bool = False
    is_read_only: bool = False

    def set_up(self, spec: VolumeSpec) -> None:
        """Mount the export, unless it is. Raises OSError."""
        path = self.path(spec)
        if self.is_set_up(spec):
            return
        make_directories(path)
        options = [*spec.mount_options, *(["ro"] if spec.read_only else [])]
        server = spec.source.server
        host = f"[{server}]" if ":" in server and not server.startswith("[") else server
        try:
            self.mounter.mount_nfs(f"{host}:{spec.source.path}", path, options)
        except OSError:
            remove_empty(path)
            raise

    def is_set_up(self, spec: VolumeSpec) -> bool:
        """Whether it is mounted."""
        return _find(self.mounter, self.path(spec)) is not None

    def path(self, spec: VolumeSpec) -> Path:
        """Return where it is mounted."""
        return volume_dir(self.pods_dir / spec.uid, NFS, spec.disk_name)


def _find(mounter: Mounter, path: Path) -> MountPoint | None:
    return next((mount for mount in mounter.mounts() if mount.path == str(path)), None)
