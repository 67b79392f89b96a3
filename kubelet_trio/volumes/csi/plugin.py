"""The plugin for CSI volumes: file systems and, if a part for them is given, block devices."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path

import trio

from kubelet_trio.model import get_logger
from kubelet_trio.volumes.csi.block_paths import BlockPaths
from kubelet_trio.volumes.csi.filesystem import CsiFilesystems
from kubelet_trio.volumes.csi.inputs import volume_use
from kubelet_trio.volumes.csi.node import CsiNode
from kubelet_trio.volumes.csi.staging import Staging
from kubelet_trio.volumes.errors import VolumeError, VolumeStepError
from kubelet_trio.volumes.spec import AsyncVolumePlugin, VolumeSpec

log = get_logger()

_REFRESH_LIMIT = 5.0  # seconds: the pod's failure does not wait for the driver any longer


class CsiPlugin:
    """Hands each volume to the part for its mode."""

    managed = True
    is_read_only = False

    def __init__(self, node: CsiNode, blocks: AsyncVolumePlugin | None = None) -> None:
        """Take what the parts share; `blocks` None: block devices are refused."""
        self._node = node
        self._files = CsiFilesystems(node, Staging(node))
        self._blocks = blocks

    def republishes(self, spec: VolumeSpec) -> bool:
        return self._part(spec).republishes(spec)

    async def set_up(self, spec: VolumeSpec) -> None:
        await self._part(spec).set_up(spec)

    async def is_set_up(self, spec: VolumeSpec) -> bool:
        return await self._part(spec).is_set_up(spec)

    def path(self, spec: VolumeSpec) -> Path:
        return self._part(spec).path(spec)

    def map_dir(self, spec: VolumeSpec) -> Path:
        """Return the directory of the pods' entries for a device."""
        return BlockPaths(self._node.root_dir, spec.disk_name).entries

    async def tear_down(self, pod_dir: Path) -> None:
        failure: VolumeError | None = None
        for part in self._parts():
            try:
                await part.tear_down(pod_dir)
            except VolumeError as exc:
                failure = failure or exc
        if failure is not None:
            raise failure

    async def unused(self) -> Mapping[str, Callable[[], Awaitable[None]]]:
        found: dict[str, Callable[[], Awaitable[None]]] = {}
        for part in self._parts():
            try:
                found |= await part.unused()
            except VolumeError:
                # Not raised here: the other part's volumes can be undone.
                found[f"all {part.__class__.__name__}"] = partial(_undo_all, part)
        return found

    async def grow(self, spec: VolumeSpec, size: int) -> None:
        """Let a published volume grow on the node. Raises `GrowthError`."""
        from kubelet_trio.volumes.csi.expand import grow_volume  # deferred: few volumes grow

        await grow_volume(self._node, spec, size)

    def is_attached(self, spec: VolumeSpec) -> bool:
        """Whether the node's status lists a volume as attached, or nobody has to attach it."""
        use = volume_use(spec)
        attachments = self._node.attachments
        return not use.is_attachable or attachments.is_attached(
            use.volume.driver, use.volume.handle
        )

    async def is_exhausted(self, spec: VolumeSpec) -> bool:
        """Whether attaching failed because the driver attaches no more volumes to the node."""
        volume = volume_use(spec).volume
        if not await self._node.attachments.is_exhausted(volume.driver, volume.handle):
            return False
        # The scheduler knows the new limit from the node's CSINode (VerifyExhaustedResource).
        with trio.move_on_after(_REFRESH_LIMIT):
            try:
                await self._node.drivers.refresh(volume.driver)
            except VolumeStepError as exc:
                log.warning("csi.driver_not_refreshed", driver=volume.driver, error=str(exc))
        return True

    def _parts(self) -> list[AsyncVolumePlugin]:
        return [self._files, *([self._blocks] if self._blocks is not None else [])]

    def _part(self, spec: VolumeSpec) -> AsyncVolumePlugin:
        if not spec.is_block:
            return self._files
        if self._blocks is None:
            raise ValueError("block volumes of CSI drivers are not supported")
        return self._blocks


async def _undo_all(part: AsyncVolumePlugin) -> None:
    """Look again for the volumes of a part that could not be read. Raises `VolumeError`."""
    for undo in (await part.unused()).values():
        await undo()
