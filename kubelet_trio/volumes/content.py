"""Volumes whose files the agent writes: configMap, secret, downwardAPI, projected.

All but configMap are kept in memory, each on its own tmpfs, so that no secret reaches a disk.
Setting one up again writes the changes atomically, into the running pod.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from lightkube.models.core_v1 import EmptyDirVolumeSource, Pod

from kubelet_trio.model import WallClock, make_directory, open_directory, pod_containers
from kubelet_trio.volumes.atomic import DATA, Payload, write_payload
from kubelet_trio.volumes.empty_dir import EmptyDir
from kubelet_trio.volumes.layout import CONFIG_MAP, DOWNWARD_API, PROJECTED, SECRET, volume_dir
from kubelet_trio.volumes.ownership import own_entry, own_tree
from kubelet_trio.volumes.payloads import (
    config_map_payload,
    downward_payload,
    projected_payload,
    secret_payload,
)
from kubelet_trio.volumes.spec import VolumeSpec

# The Go kubelet makes it 0777. Narrower here, because containers of the process runtime see the
# directory itself and not a read-only mount of it.
_MODE = 0o755
# Without the set-group-ID bit, which fsGroup sets.
_PERMISSIONS = 0o1777


@dataclass(frozen=True, slots=True)
class ContentVolume:
    """The plugin for one of these kinds."""

    plugin: str  # name of its directory
    payload: Callable[[VolumeSpec], Payload]
    in_memory: bool
    base: EmptyDir
    clock: WallClock
    managed: bool = True
    follows_objects: bool = True
    # Containers must not write here, whatever the pod's spec says: CVE-2017-1002102, as in the
    # Go kubelet.
    is_read_only: bool = True

    def set_up(self, spec: VolumeSpec) -> None:
        """Write the files if they changed. Raises as `VolumePlugin.set_up`."""
        # First, so that a payload with an error leaves no half-made volume.
        payload = self.payload(spec)
        path = self.path(spec)
        medium = EmptyDirVolumeSource(medium="Memory" if self.in_memory else "")
        self.base.make(spec.pod, medium, path, mode=_MODE)
        _close(path, spec.fs_group)
        own = partial(own_tree, group=spec.fs_group, read_only=True)
        write_payload(path, payload, self.clock.time(), own)
        for below in _nested_mounts(spec.pod, spec.name):
            _make_mount_point(path, below)

    def is_set_up(self, spec: VolumeSpec) -> bool:
        """Whether the volume has content; containers need not wait for its refresh."""
        path = self.path(spec)
        # An ephemeral container may have come with a mount below it.
        return all(
            os.path.lexists(path / name) for name in (DATA, *_nested_mounts(spec.pod, spec.name))
        )

    def path(self, spec: VolumeSpec) -> Path:
        """Return the directory on the host."""
        return volume_dir(self.base.pods_dir / spec.uid, self.plugin, spec.disk_name)


def _close(path: Path, group: int | None) -> None:
    """Take write access from other users: earlier versions made the directory 0777."""
    directory = open_directory(path)
    try:
        found = os.fstat(directory)
        # The owner of a directory can change any mode back, so that must be the agent.
        if found.st_uid != os.geteuid():
            os.fchown(directory, os.geteuid(), -1)
        if stat.S_IMODE(found.st_mode) & ~_MODE & _PERMISSIONS:
            os.fchmod(directory, _MODE)
        own_entry(directory, group, read_only=True)
    finally:
        os.close(directory)


def _nested_mounts(pod: Pod, volume: str) -> Iterator[str]:
    """Yield where containers mount other volumes below a volume, relative to it.

    Not what is below one of these: that is within the other volume (getNestedMountpoints).
    """
    for container in pod_containers(pod):
        mounts = [
            (mount.name, os.path.normpath("/" + mount.mountPath.lstrip("/")))
            for mount in container.spec.volumeMounts or ()
        ]
        for top in (path for name, path in mounts if name == volume):
            below = {path for _, path in mounts if path.startswith(f"{top}/")}
            for path in sorted(below):
                if below.isdisjoint(map(str, Path(path).parents)):
                    yield path.removeprefix(f"{top}/")


def _make_mount_point(directory: Path, below: str) -> None:
    """Make a mount point in a volume, because a runtime cannot in a read-only mount.

    Whatever else has the name stays: a file of the volume, or what a container has put there.

    Raises OSError.
    """
    path = directory / below
    with suppress(NotADirectoryError):
        os.close(make_directory(path, _MODE, own=len(Path(below).parts) + 1))


def content_volumes(base: EmptyDir, clock: WallClock) -> Mapping[str, ContentVolume]:
    """Return the plugins, by volume kind."""
    return {
        "configMap": ContentVolume(CONFIG_MAP, config_map_payload, False, base, clock),
        "secret": ContentVolume(SECRET, secret_payload, True, base, clock),
        "downwardAPI": ContentVolume(DOWNWARD_API, downward_payload, True, base, clock),
        "projected": ContentVolume(PROJECTED, projected_payload, True, base, clock),
    }
