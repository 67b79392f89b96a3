"""Paths of a pod's volumes below the root directory: the Go kubelet's layout.

    pods/<uid>/volumes/<plugin>/<volume>                     the volume
    pods/<uid>/plugins/<plugin>/<volume>/ready               marker: its set-up was completed
    pods/<uid>/volume-subpaths/<volume>/<container>/<index>  bind mounts of subPaths
    pods/<uid>/volumeDevices/<plugin>/<volume>               link to a block volume's device

So either agent finds the volumes of the other.
"""

from __future__ import annotations

import os
from pathlib import Path

# By the field of a Volume or of a PersistentVolumeSpec.
PLUGINS = {
    "configMap": "kubernetes.io/configmap",
    "downwardAPI": "kubernetes.io/downward-api",
    "emptyDir": "kubernetes.io/empty-dir",
    "hostPath": "kubernetes.io/host-path",
    "image": "kubernetes.io/image",
    "local": "kubernetes.io/local-volume",
    "nfs": "kubernetes.io/nfs",
    "projected": "kubernetes.io/projected",
    "secret": "kubernetes.io/secret",
    "csi": "kubernetes.io/csi",
    "fc": "kubernetes.io/fc",
    "flexVolume": "kubernetes.io/flexvolume",
    "iscsi": "kubernetes.io/iscsi",
}

# Names of directories: the slash becomes a tilde (EscapeQualifiedName in k8s.io/utils/strings).
EMPTY_DIR = "kubernetes.io~empty-dir"
CONFIG_MAP = "kubernetes.io~configmap"
DOWNWARD_API = "kubernetes.io~downward-api"
PROJECTED = "kubernetes.io~projected"
SECRET = "kubernetes.io~secret"
NFS = "kubernetes.io~nfs"
CSI = "kubernetes.io~csi"

# Plugins whose volumes exist only for the pod (a directory or a tmpfs): teardown unmounts and
# removes them, whichever agent made them.
OWN_PLUGINS = frozenset((CONFIG_MAP, DOWNWARD_API, EMPTY_DIR, PROJECTED, SECRET))

VOLUME_DEVICES = "volumeDevices"  # the directory of block devices, of a pod and of a plugin
MARKER = 0o644  # the mode of a marker file, as in the Go kubelet


def volumes_dir(pod_dir: Path) -> Path:
    return pod_dir / "volumes"


def devices_dir(pod_dir: Path) -> Path:
    """Return the directory of the pod's block devices, by plugin as `volumes_dir`."""
    return pod_dir / VOLUME_DEVICES


def volume_dir(pod_dir: Path, plugin: str, volume: str) -> Path:
    return volumes_dir(pod_dir) / plugin / volume


def ready_file(pod_dir: Path, plugin: str, volume: str) -> Path:
    """Return the path of the marker that a volume's set-up is complete."""
    return pod_dir / "plugins" / plugin / volume / "ready"


def sub_paths_dir(pod_dir: Path) -> Path:
    return pod_dir / "volume-subpaths"


def sub_path_target(pod_dir: Path, volume: str, container: str, index: int) -> Path:
    """Return the bind mount's path for the subPath of a container's `index`-th volume mount."""
    return sub_paths_dir(pod_dir) / volume / container / str(index)


# Plugins whose volumes can be block devices, by the field of a PersistentVolumeSpec.
BLOCK_PLUGINS = {
    "csi": CSI,
    "fc": "kubernetes.io~fc",
    "iscsi": "kubernetes.io~iscsi",
    "local": "kubernetes.io~local-volume",
}


def device_link(pod_dir: Path, kind: str, volume: str) -> Path:
    """Return the path of a pod's link to the device of a block volume."""
    return devices_dir(pod_dir) / BLOCK_PLUGINS[kind] / volume


def names_in(directory: Path) -> list[str]:
    """Return the names in a directory, in order; none if it does not exist. Raises OSError."""
    try:
        return sorted(os.listdir(directory))
    except FileNotFoundError:
        return []
