"""Where block volumes of CSI drivers are on the node: the Go kubelet's layout.

    plugins/kubernetes.io/csi/volumeDevices/<name>/data/vol_data.json   record of the volume
    plugins/kubernetes.io/csi/volumeDevices/<name>/dev/<uid>            entry: the device for a pod
    plugins/kubernetes.io/csi/volumeDevices/staging/<name>              staging path
    plugins/kubernetes.io/csi/volumeDevices/publish/<name>/<uid>        target path
    pods/<uid>/volumeDevices/kubernetes.io~csi/<name>                   link to the device

`<name>` is the persistent volume's. Source: pkg/volume/csi/csi_block.go.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kubelet_trio.volumes.csi.types import CSI_PLUGIN
from kubelet_trio.volumes.layout import VOLUME_DEVICES, device_link, names_in

STAGING, PUBLISH = "staging", "publish"  # no volume can have one of these names


@dataclass(frozen=True, slots=True)
class BlockPaths:
    """The paths of one block volume on the node."""

    root_dir: Path
    name: str  # the persistent volume's

    @property
    def base(self) -> Path:
        return block_dir(self.root_dir) / self.name

    @property
    def data(self) -> Path:
        return self.base / "data"

    @property
    def entries(self) -> Path:
        return self.base / "dev"

    @property
    def staging(self) -> Path:
        return block_dir(self.root_dir) / STAGING / self.name

    @property
    def targets(self) -> Path:
        return block_dir(self.root_dir) / PUBLISH / self.name

    def link(self, uid: str) -> Path:
        return device_link(self.root_dir / "pods" / uid, "csi", self.name)

    def pods(self) -> frozenset[str]:
        """Return the UIDs of the pods that it is, or may be, published to. Raises OSError."""
        return frozenset((*names_in(self.entries), *names_in(self.targets)))


def block_dir(root_dir: Path) -> Path:
    """Return the directory of all block volumes of CSI drivers."""
    return root_dir / "plugins" / CSI_PLUGIN / VOLUME_DEVICES


def block_volumes(root_dir: Path) -> list[BlockPaths]:
    """Return the block volumes that have anything on disk. Raises OSError."""
    base = block_dir(root_dir)
    names = {*names_in(base), *names_in(base / STAGING), *names_in(base / PUBLISH)}
    return [BlockPaths(root_dir, name) for name in sorted(names - {STAGING, PUBLISH})]
