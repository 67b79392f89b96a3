"""Which volumes the containers of a pod use: as mounts, or as devices."""

from __future__ import annotations

from typing import NamedTuple

from lightkube.models.core_v1 import Pod, Volume

from kubelet_trio.model import pod_containers
from kubelet_trio.model import spec as pod_spec


class UsedNames(NamedTuple):
    """Names of volumes in a pod's spec; of a valid pod, none is in both sets."""

    mounts: frozenset[str]  # in `volumeMounts`
    devices: frozenset[str]  # in `volumeDevices`


def used_names(pod: Pod) -> UsedNames:
    """Return the names of the volumes that containers of any kind use (GetPodVolumeNames)."""
    specs = [container.spec for container in pod_containers(pod)]
    return UsedNames(
        frozenset(mount.name for each in specs for mount in each.volumeMounts or ()),
        frozenset(device.name for each in specs for device in each.volumeDevices or ()),
    )


def used_volumes(pod: Pod) -> list[Volume]:
    """Return the volumes that a container uses: as upstream's populator, only they are set up."""
    used = used_names(pod)
    return [v for v in pod_spec(pod).volumes or () if v.name in used.mounts | used.devices]
