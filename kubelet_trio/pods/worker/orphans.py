"""Directories of pods that nobody wants and nobody ends: reclaimed.

A pod's worker removes its own directory. One is left over when the agent died at the
wrong moment, or when it is another agent's, from before. It goes when no source wants the
pod, the runtime holds nothing of it and no worker is at it; what is mounted in it is
unmounted first, and what cannot be unmounted stays, with all that is in it. Files that no
agent puts there stay too, and are named in the log, once.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import trio

from kubelet_trio.model import PodUid, get_logger, housekeeping_round
from kubelet_trio.pods.services import PodServices
from kubelet_trio.pods.worker.registry import PodRegistry
from kubelet_trio.volumes import VOLUME_ERRORS

log = get_logger()

_PERIOD = 60.0  # seconds between looks; what is left over does no harm meanwhile


@dataclass(slots=True)
class OrphanDirectories:
    """Looks for them, once in a while."""

    services: PodServices
    registry: PodRegistry
    _trouble: dict[PodUid, str] = field(default_factory=dict)  # as last logged

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Look until cancelled."""
        task_status.started()
        await self.services.observer.wait_synced()
        await self.registry.wait_complete()
        while True:
            with housekeeping_round("pod directories"):
                await self.sweep()
            await trio.sleep(_PERIOD)

    async def sweep(self) -> None:
        """Reclaim what can be."""
        on_disk = await self.services.volumes.pods_on_disk()
        cleaned, failed = 0, 0
        for uid in sorted(on_disk):
            with self.registry.reclaiming(uid) as is_ours:
                if is_ours:
                    is_gone = await self._reclaim(uid)
                    cleaned += is_gone
                    failed += not is_gone
        self.services.meter.set("kubelet_orphan_pod_cleaned_volumes", cleaned)
        self.services.meter.set("kubelet_orphan_pod_cleaned_volumes_errors", failed)
        self._trouble = {uid: text for uid, text in self._trouble.items() if uid in on_disk}

    async def _reclaim(self, uid: PodUid) -> bool:
        """Reclaim one; return whether it is gone."""
        try:
            await self.services.volumes.unmount(uid)
            await self.services.records.remove(uid)
        except VOLUME_ERRORS as exc:
            if self._trouble.get(uid) != str(exc):
                self._trouble[uid] = str(exc)
                log.warning("pod.orphan_directory_stays", uid=uid, error=str(exc))
            return False
        log.info("pod.orphan_directory_removed", uid=uid)
        return True
