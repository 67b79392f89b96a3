"""Volumes of the clouds' in-tree kinds: CSI volumes under another name.

The translation itself is imported with the first such volume: most nodes have none.
"""

from __future__ import annotations

from lightkube.models.core_v1 import PersistentVolume, PersistentVolumeSpec, Volume

# By the field of a Volume or of a PersistentVolumeSpec; the same as in `migration`.
IN_TREE_KINDS = (
    "awsElasticBlockStore",
    "azureDisk",
    "azureFile",
    "cinder",
    "gcePersistentDisk",
    "portworxVolume",
    "vsphereVolume",
)


def is_in_tree(source: Volume | PersistentVolumeSpec) -> bool:
    """Whether a volume is of such a kind."""
    return any(getattr(source, kind) is not None for kind in IN_TREE_KINDS)


def persistent_as_csi(volume: PersistentVolume) -> PersistentVolume:
    """Return a persistent volume as the CSI volume that it is; the same object for other kinds.

    Raises ValueError if it cannot be translated.
    """
    if volume.spec is None or not is_in_tree(volume.spec):
        return volume
    from kubelet_trio.objects.migration import migrated_persistent

    return migrated_persistent(volume)


def inline_as_csi(volume: Volume, namespace: str) -> PersistentVolume | None:
    """Return a volume of a pod as the CSI volume that it is; None for other kinds.

    Raises ValueError if it cannot be translated.

    Args:
        volume: the pod's volume.
        namespace: the pod's.
    """
    if not is_in_tree(volume):
        return None
    from kubelet_trio.objects.migration import migrated_inline

    return migrated_inline(volume, namespace)
