"""Finds the mounted volumes whose claims have been resized, and lets them grow."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from lightkube.models.core_v1 import Pod, Volume

from kubelet_trio.model import PodUid, get_logger, pod_key, pod_uid
from kubelet_trio.objects import claim_key, claim_name
from kubelet_trio.volumes.async_volumes import AsyncVolumes
from kubelet_trio.volumes.errors import VolumeError
from kubelet_trio.volumes.expansion import VolumeGrowth
from kubelet_trio.volumes.measure import VolumeMeter, plugin_name
from kubelet_trio.volumes.spec import GrowingPlugin, VolumeSpec, is_claimed
from kubelet_trio.volumes.spec_reader import SpecReader
from kubelet_trio.volumes.used import used_volumes

log = get_logger()


@dataclass(frozen=True, slots=True)
class GrowingVolumes:
    """The volumes of running pods, as far as they may have to grow."""

    specs: SpecReader
    plugins: AsyncVolumes
    growth: VolumeGrowth | None  # None: nothing grows
    meter: VolumeMeter

    @property
    def has_any(self) -> bool:
        """Whether this node has, or had, a volume that may have to grow."""
        return any(isinstance(plugin, GrowingPlugin) for plugin in self.plugins.plugins.values())

    async def grow(self, pod: Pod) -> None:
        """Let volumes of a running pod grow whose claims have been resized.

        A failure is an event; what cannot be read now is looked at again the next time.
        """
        for volume in used_volumes(pod):
            spec = await self._claimed(pod, volume) if is_claimed(volume) else None
            if self.growth is None or spec is None or not self.plugins.serves(spec.kind):
                continue
            plugin = self.plugins.plugin(spec.kind)
            if isinstance(plugin, GrowingPlugin):
                measured = partial(self.meter.operation, "volume_fs_resize", plugin_name(spec))
                await self.growth.while_mounted(spec, plugin, measured)

    def forget(self, uid: PodUid) -> None:
        """Forget a pod that is gone: what `grow` has read, and what it knows of its volumes."""
        self.specs.objects.release(uid)
        if self.growth is not None:
            self.growth.forget(uid)

    async def _claimed(self, pod: Pod, volume: Volume) -> VolumeSpec | None:
        key = pod_key(pod)
        wanted = claim_key(key.namespace, claim_name(key.name, volume))
        # To hold it again has it read again: of a bound claim nothing else changes.
        self.specs.objects.hold(pod_uid(pod), [wanted])
        try:
            (spec,) = await self.specs.read(pod, [volume])
        except VolumeError as exc:
            log.debug("volume.size_unknown", volume=volume.name, error=str(exc))
            return None
        return spec
