"""Which volumes the containers of a pod use: as mounts, or as devices."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from lightkube.models.core_v1 import Container, Pod, Volume

from kubelet_trio.model import ContainerKind, pod_containers
from kubelet_trio.model import spec as pod_spec


class UsedNames(NamedTuple):
    """Names of volumes in a pod's spec; of a valid pod, none is in both sets."""

    mounts: frozenset[str]  # in `volumeMounts`
    devices: frozenset[str]  # in `volumeDevices`


def used_names(pod: Pod) -> UsedNames:
    """Return the names of the volumes that containers of any kind use (GetPodVolumeNames)."""
    return _names(container.spec for container in pod_containers(pod))


def names_used_late(pod: Pod) -> frozenset[str]:
    """Return the names of the volumes that ephemeral containers alone use.

    They are set up when the pod runs already, and so are not among those of its start.
    """
    first = _names(c.spec for c in pod_containers(pod) if c.kind is not ContainerKind.EPHEMERAL)
    every = used_names(pod)
    return (every.mounts | every.devices) - (first.mounts | first.devices)


def _names(containers: Iterable[Container]) -> UsedNames:
    specs = list(containers)
    return UsedNames(
        frozenset(mount.name for each in specs for mount in each.volumeMounts or ()),
        frozenset(device.name for each in specs for device in each.volumeDevices or ()),
    )


def used_volumes(pod: Pod) -> list[Volume]:
    """Return the volumes that a container uses: as upstream's populator, only they are set up."""
    used = used_names(pod)
    return [v for v in pod_spec(pod).volumes or () if v.name in used.mounts | used.devices]
