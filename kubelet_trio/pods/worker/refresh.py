"""Showing objects as they are now in the volumes of a pod that has been set up."""

from __future__ import annotations

from dataclasses import dataclass

import trio
from lightkube.models.core_v1 import Pod

from kubelet_trio.model import get_logger, pod_object_ref
from kubelet_trio.pods.plan.pod_plan import PodPlan
from kubelet_trio.pods.services import PodServices
from kubelet_trio.volumes import VolumeError

log = get_logger()


@dataclass(slots=True)
class VolumeRefresh:
    """When one pod's volumes are brought up to date; its worker's."""

    services: PodServices
    _due_at: float = 0.0  # trio time

    def soon(self) -> None:
        """An object is another: do not wait for the period to pass."""
        self._due_at = 0.0

    async def refresh(self, pod: Pod, plan: PodPlan) -> None:
        """Bring the volumes up to date, if that is due and they have been set up."""
        if plan.sandbox_id is None or plan.finished or trio.current_time() < self._due_at:
            return
        self._due_at = trio.current_time() + self.services.sync_period
        try:
            await self.services.volumes.refresh(pod)
        except VolumeError as exc:
            log.warning("pod.refresh_failed", error=str(exc))
            self.services.events.emit(pod_object_ref(pod), "Warning", "FailedMount", str(exc))
