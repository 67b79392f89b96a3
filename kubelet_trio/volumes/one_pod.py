"""ReadWriteOncePod: a persistent volume that one pod of the node uses at a time. Blocks.

    pods/<uid>/plugins/kubelet-trio~read-write-once-pod/<volume>/ready   the pod has it

The scheduler sees to it that no second pod comes. This is for those that come without it (with
`nodeName` set), as in the Go kubelet. What says so is on disk: an agent that starts again knows.
"""

from __future__ import annotations

from pathlib import Path

from kubelet_trio.containers import make_directories
from kubelet_trio.model import remove_tree
from kubelet_trio.volumes.layout import MARKER, ready_file
from kubelet_trio.volumes.spec import VolumeSpec

_PLUGIN = "kubelet-trio~read-write-once-pod"


def take_for_one_pod(pods_dir: Path, spec: VolumeSpec) -> None:
    """Give a volume to a pod, unless another has it. Raises ValueError and OSError.

    Callers take turns: two at once could both find it free.
    """
    own = ready_file(pods_dir / spec.uid, _PLUGIN, spec.disk_name)
    if own.exists():
        return
    make_directories(own.parent)
    for other in pods_dir.iterdir():
        if other.name != spec.uid and ready_file(other, _PLUGIN, spec.disk_name).exists():
            raise ValueError(
                "volume uses the ReadWriteOncePod access mode and is already in use by another pod"
            )
    own.touch(MARKER)


def give_back(pod_dir: Path) -> None:
    """A pod's volumes are taken down: others may have what it had. Raises OSError."""
    remove_tree(pod_dir / "plugins" / _PLUGIN)
