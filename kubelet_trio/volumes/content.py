"""Volumes whose files the agent writes: configMap, secret, downwardAPI, projected.

All but configMap are kept in memory, on a tmpfs of their own, so that no secret reaches a
disk. Setting one up again writes what changed since, atomically, into the running pod.

Nobody but the agent writes here: containers mount these volumes read-only, whatever the pod says,
as the Go kubelet has it since CVE-2017-1002102. The directory is root's and of mode 0755 (there
0777), for where nothing is mounted.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from lightkube.models.core_v1 import EmptyDirVolumeSource

from kubelet_trio.model import WallClock, open_directory
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

_MODE = 0o755
_PERMISSIONS = 0o1777


@dataclass(frozen=True, slots=True)
class ContentVolume:
    """The plugin of one of these kinds."""

    plugin: str  # its name on disk
    payload: Callable[[VolumeSpec], Payload]
    in_memory: bool
    base: EmptyDir
    clock: WallClock
    managed: bool = True
    follows_objects: bool = True
    is_read_only: bool = True

    def set_up(self, spec: VolumeSpec) -> None:
        """Write the files if they changed. See `VolumePlugin` for what it raises."""
        # Before anything is made: what cannot be written shall not be half there.
        payload = self.payload(spec)
        path = self.path(spec)
        medium = EmptyDirVolumeSource(medium="Memory" if self.in_memory else "")
        self.base.make(spec.pod, medium, path, mode=_MODE)
        _close(path, spec.fs_group)
        own = partial(own_tree, group=spec.fs_group, read_only=True)
        write_payload(path, payload, self.clock.time(), own)

    def is_set_up(self, spec: VolumeSpec) -> bool:
        """Whether there is any content: bringing it up to date is not a container's to wait for."""
        return os.path.lexists(self.path(spec) / DATA)

    def path(self, spec: VolumeSpec) -> Path:
        """Return the directory on the host."""
        return volume_dir(self.base.pods_dir / spec.uid, self.plugin, spec.disk_name)


def _close(path: Path, group: int | None) -> None:
    """Leave the volume's directory to the agent: an earlier version had it open to all."""
    directory = open_directory(path)
    try:
        found = os.fstat(directory)
        if found.st_uid != os.geteuid():
            os.fchown(directory, os.geteuid(), -1)
        if stat.S_IMODE(found.st_mode) & ~_MODE & _PERMISSIONS:
            os.fchmod(directory, _MODE)
        own_entry(directory, group, read_only=True)
    finally:
        os.close(directory)


def content_volumes(base: EmptyDir, clock: WallClock) -> Mapping[str, ContentVolume]:
    """Return the plugins by kind."""
    return {
        "configMap": ContentVolume(CONFIG_MAP, config_map_payload, False, base, clock),
        "secret": ContentVolume(SECRET, secret_payload, True, base, clock),
        "downwardAPI": ContentVolume(DOWNWARD_API, downward_payload, True, base, clock),
        "projected": ContentVolume(PROJECTED, projected_payload, True, base, clock),
    }
