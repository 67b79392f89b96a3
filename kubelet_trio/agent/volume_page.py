"""Shows which volumes the node has, for `kubelet-trio volumes`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from kubelet_trio.agent.settings import Seams
from kubelet_trio.agent.stats import AgentStats
from kubelet_trio.agent.volumes import VolumeNames
from kubelet_trio.containers import NodeSettings
from kubelet_trio.model import Purpose
from kubelet_trio.status import StatusStore

if TYPE_CHECKING:
    from kubelet_trio.stats import Filesystem
    from kubelet_trio.volumes import VolumeFill


@dataclass(frozen=True, slots=True)
class VolumePage:
    """Writes the JSON of the control socket's `/volumes`."""

    node: NodeSettings
    seams: Seams
    statuses: StatusStore
    names: VolumeNames
    stats: AgentStats

    async def page(self) -> bytes:
        """Return `{"items": [...]}`, a `VolumeRow` each."""
        from kubelet_trio.volumes import list_volumes, read_listing  # deferred: few ask

        offload = self.seams.offload_for(Purpose.VOLUMES)
        listing = await offload(read_listing, self.node.root_dir, self.seams.mounter)
        pods = self.statuses.pods.value
        names = await self.names.of_pods(pods)
        fills = {
            uid: {name: _fill(fs) for name, fs in volumes.items()}
            for uid, volumes in (await self.stats.volumes()).items()
        }
        return msgspec.json.encode({"items": list_volumes(listing, pods, names, fills)}) + b"\n"


def _fill(fs: Filesystem) -> VolumeFill:
    from kubelet_trio.volumes import VolumeFill

    return VolumeFill(
        fs.capacity,
        fs.used,
        fs.available,
        fs.inodes,
        fs.inodes_used,
        abnormal=fs.abnormal,
        message=fs.message,
    )
