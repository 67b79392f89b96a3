"""Remove orphaned pod directories.

Normally a pod's worker removes its directory. A directory is orphaned when the agent died before
that, or when another agent left it. It is removed once no source wants the pod, the runtime has
nothing of it and it has no worker. Its volumes are unmounted first. A volume that cannot be
unmounted is kept with its content, and so are files that no agent creates; they are logged once.

What volumes have left on the node outside of these directories is undone by a task of its own: a
driver that hangs delays no directory.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import trio

from kubelet_trio.model import Phase, PodUid, get_logger, housekeeping_round, next_due
from kubelet_trio.pods.services import PodServices
from kubelet_trio.pods.worker.registry import PodRegistry
from kubelet_trio.volumes import VOLUME_ERRORS

log = get_logger()

_PERIOD = 60.0  # seconds between sweeps; an orphaned directory does no harm meanwhile
_LIMIT = 16  # directories at a time: a driver can hang for minutes with each


@dataclass(slots=True)
class OrphanDirectories:
    """Looks for orphaned directories periodically, and removes them."""

    services: PodServices
    registry: PodRegistry
    _problems: dict[PodUid, str] = field(default_factory=dict)  # as last logged
    _has_counted: bool = False

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Sweep until cancelled, once it is known which pods are wanted and which exist."""
        task_status.started()
        if not self._has_counted:
            with housekeeping_round("volumes on disk"):
                await self._count_volumes()
        await self.services.observer.wait_synced()
        await self.registry.wait_complete()
        while True:
            with housekeeping_round("pod directories"):
                await self.sweep()
            await trio.sleep_until(next_due(_PERIOD, Phase.POD_DIRECTORIES))

    async def _count_volumes(self) -> None:
        """Count what an earlier agent has left: upstream's volume reconstruction (KEP-3756)."""
        found, unreadable = await self.services.volumes.volumes_on_disk()
        self._has_counted = True
        meter = self.services.meter
        meter.count("reconstruct_volume_operations_total", by=found + unreadable)
        meter.count("reconstruct_volume_operations_errors_total", by=unreadable)

    async def sweep(self) -> None:
        """Reclaim every orphaned directory that can be reclaimed."""
        on_disk = await self.services.volumes.pods_on_disk()
        limit, gone = trio.CapacityLimiter(_LIMIT), dict[PodUid, bool]()

        async def one(uid: PodUid) -> None:
            async with limit:
                # Only now: a pod of this UID that is wanted again does not wait for the others.
                with self.registry.reclaiming(uid) as is_orphan:
                    if is_orphan:
                        gone[uid] = await self._reclaim(uid)

        async with trio.open_nursery() as directories:
            for uid in sorted(on_disk):
                if not self.registry.is_owned(uid):  # no task for each pod that runs
                    directories.start_soon(one, uid)
        is_gone = list(gone.values())
        self.services.meter.set("kubelet_orphan_pod_cleaned_volumes", is_gone.count(True))
        self.services.meter.set("kubelet_orphan_pod_cleaned_volumes_errors", is_gone.count(False))
        self._problems = {uid: text for uid, text in self._problems.items() if uid in on_disk}

    async def _reclaim(self, uid: PodUid) -> bool:
        """Reclaim one; return whether it is gone."""
        try:
            # Before anything is removed: what is still mounted must not be emptied.
            await self.services.volumes.unmount(uid)
            await self.services.records.remove(uid)
        except VOLUME_ERRORS as exc:
            if self._problems.get(uid) != str(exc):
                self._problems[uid] = str(exc)
                log.warning("pod.orphan_directory_stays", podUID=uid, error=str(exc))
            return False
        log.info("pod.orphan_directory_removed", podUID=uid)
        return True


@dataclass(frozen=True, slots=True)
class LeftVolumes:
    """Undoes what volumes have left on the node and no pod needs, such as staged volumes."""

    services: PodServices
    registry: PodRegistry

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run until cancelled, once it is known which pods are wanted and which exist."""
        task_status.started()
        await self.services.observer.wait_synced()
        await self.registry.wait_complete()
        await self.services.volumes.unused.run()
