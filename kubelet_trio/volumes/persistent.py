"""What a persistent volume demands of its node, and gives to the pods that use it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from lightkube.models.core_v1 import PersistentVolume, PersistentVolumeSpec, Pod, PodSecurityContext
from lightkube.models.meta_v1 import ObjectMeta

from kubelet_trio.model import matches_node_selector
from kubelet_trio.model import spec as pod_spec
from kubelet_trio.volumes.errors import VolumeError

_GROUP = "pv.beta.kubernetes.io/gid"
_MOUNT_OPTIONS = "volume.beta.kubernetes.io/mount-options"
# Kinds whose plugins upstream say no to SupportsMountOption.
_WITHOUT_OPTIONS = ("flexVolume", "hostPath")
_INTEGER = re.compile(r"[+-]?[0-9]+")


def check_node(
    volume: PersistentVolume, labels: Mapping[str, str] | None, *, is_block: bool = False
) -> None:
    """Check that a volume may be mounted on a node with such labels (CheckNodeAffinity).

    The scheduler checks that already; this is for pods that bypass it with `nodeName`.

    Args:
        volume: the persistent volume.
        labels: the node's; None if the node has no object, so that nothing is checked.
        is_block: whether it is mapped as a device.

    Raises `VolumeError`.
    """
    affinity = _spec(volume).nodeAffinity
    if labels is None or affinity is None or affinity.required is None:
        return
    # As upstream without the node's name: an affinity of fields matches no node.
    if not matches_node_selector(affinity.required, "", labels):
        where = "MapVolume" if is_block else "MountVolume"
        raise _refused(f"{where}.NodeAffinity", volume, "no matching NodeSelectorTerms")


def check_options(volume: PersistentVolume, kind: str) -> None:
    """Check that a volume of a kind may have its mount options. Raises `VolumeError`."""
    if kind in _WITHOUT_OPTIONS and mount_options(volume):
        problem = "mount options are not supported for this volume type"
        raise _refused("MountVolume.MountOptionSupport", volume, problem)


def mount_options(volume: PersistentVolume) -> tuple[str, ...]:
    """Return the mount options, of the annotation before those of the spec (MountOptionFromSpec).

    Each comes once, in the order given.
    """
    notes = (volume.metadata or ObjectMeta()).annotations or {}
    if _MOUNT_OPTIONS in notes:
        return tuple(dict.fromkeys(option for option in notes[_MOUNT_OPTIONS].split(",") if option))
    return tuple(dict.fromkeys(_spec(volume).mountOptions or ()))


def volume_groups(pod: Pod, volumes: Iterable[PersistentVolume]) -> tuple[int, ...]:
    """Return the supplemental groups that volumes add to all containers of a pod.

    The annotation is from provisioners of shared file systems: their files belong to that group.
    As getExtraSupplementalGID has it, a group that the pod has already is left out, and what is no
    number is ignored.
    """
    context = pod_spec(pod).securityContext or PodSecurityContext()
    own = context.supplementalGroups or ()
    groups = set()
    for volume in volumes:
        text = ((volume.metadata or ObjectMeta()).annotations or {}).get(_GROUP, "")
        if _INTEGER.fullmatch(text) and -(1 << 63) <= int(text) < 1 << 63:
            groups.add(int(text))
    return tuple(sorted(groups.difference(own)))


def _refused(check: str, volume: PersistentVolume, problem: str) -> VolumeError:
    name = (volume.metadata or ObjectMeta()).name or ""
    return VolumeError(name, f'{check} check failed for volume "{name}" : {problem}')


def _spec(volume: PersistentVolume) -> PersistentVolumeSpec:
    return volume.spec or PersistentVolumeSpec()
