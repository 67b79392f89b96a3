"""Volumes whose files the agent writes: configMap, secret, downwardAPI, projected.

All but configMap are kept in memory, on a tmpfs of their own, so that no secret reaches a
disk. Setting one up again writes what changed since, atomically, into the running pod.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from lightkube.models.core_v1 import EmptyDirVolumeSource

from kubelet_trio.model import WallClock
from kubelet_trio.volumes.atomic import Payload, write_payload
from kubelet_trio.volumes.empty_dir import EmptyDir
from kubelet_trio.volumes.layout import CONFIG_MAP, DOWNWARD_API, PROJECTED, SECRET, volume_dir
from kubelet_trio.volumes.ownership import own_volume
from kubelet_trio.volumes.payloads import (
    config_map_payload,
    downward_payload,
    projected_payload,
    secret_payload,
)
from kubelet_trio.volumes.spec import VolumeSpec


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

    def set_up(self, spec: VolumeSpec) -> None:
        """Write the files if they changed. See `VolumePlugin` for what it raises."""
        # Before anything is made: what cannot be written shall not be half there.
        payload = self.payload(spec)
        path = self.path(spec)
        medium = EmptyDirVolumeSource(medium="Memory" if self.in_memory else "")
        self.base.make(spec.pod, medium, path)

        def own() -> None:
            own_volume(path, spec.fs_group, read_only=True)

        write_payload(path, payload, self.clock.time(), own)

    def path(self, spec: VolumeSpec) -> Path:
        """Return the directory on the host."""
        return volume_dir(self.base.pods_dir / spec.uid, self.plugin, spec.disk_name)


def content_volumes(base: EmptyDir, clock: WallClock) -> Mapping[str, ContentVolume]:
    """Return the plugins by kind."""
    return {
        "configMap": ContentVolume(CONFIG_MAP, config_map_payload, False, base, clock),
        "secret": ContentVolume(SECRET, secret_payload, True, base, clock),
        "downwardAPI": ContentVolume(DOWNWARD_API, downward_payload, True, base, clock),
        "projected": ContentVolume(PROJECTED, projected_payload, True, base, clock),
    }
