"""Where a pod's volumes lie below the root directory: the Go kubelet's layout.

    pods/<uid>/volumes/<plugin>/<volume>                     the volume
    pods/<uid>/plugins/<plugin>/<volume>/ready               it was set up completely once
    pods/<uid>/volume-subpaths/<volume>/<container>/<index>  bind mounts of subPaths

A plugin's name has its slash written as a tilde (`kubernetes.io~empty-dir`).
"""

from __future__ import annotations

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
}

EMPTY_DIR = "kubernetes.io~empty-dir"
CONFIG_MAP = "kubernetes.io~configmap"
DOWNWARD_API = "kubernetes.io~downward-api"
PROJECTED = "kubernetes.io~projected"
SECRET = "kubernetes.io~secret"
LOCAL = "kubernetes.io~local-volume"
NFS = "kubernetes.io~nfs"

# Plugins whose volumes are a directory or a tmpfs of the pod's own: safe to unmount and
# remove once the pod is gone, whichever agent made them.
OWN_PLUGINS = frozenset((CONFIG_MAP, DOWNWARD_API, EMPTY_DIR, PROJECTED, SECRET))

# Plugins whose volumes are somebody else's, mounted for the pod: unmounted, and nothing but the
# empty mount point removed.
MOUNTED_PLUGINS = frozenset((LOCAL, NFS))


MARKER = 0o644  # the mode of a marker, whatever the umask is; as the Go kubelet has it


def volumes_dir(pod_dir: Path) -> Path:
    return pod_dir / "volumes"


def volume_dir(pod_dir: Path, plugin: str, volume: str) -> Path:
    return volumes_dir(pod_dir) / plugin / volume


def ready_file(pod_dir: Path, plugin: str, volume: str) -> Path:
    """Return the marker that a volume's set-up has finished."""
    return pod_dir / "plugins" / plugin / volume / "ready"


def sub_paths_dir(pod_dir: Path) -> Path:
    return pod_dir / "volume-subpaths"


def sub_path_target(pod_dir: Path, volume: str, container: str, index: int) -> Path:
    """Return where the subPath of a container's `index`-th volume mount is bound to."""
    return sub_paths_dir(pod_dir) / volume / container / str(index)
