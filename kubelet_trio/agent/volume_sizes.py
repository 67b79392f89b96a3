"""The child `volume-sizes`: let volumes of running pods grow after their claims were resized.

Once a period it looks at the claims of all pods with a running container, as the Go kubelet does at
each sync of a pod. Each pod has a task of its own: a driver that hangs holds up no other pod. As
long as no driver serves a volume here, nothing is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import trio
from lightkube.models.core_v1 import Pod

from kubelet_trio.model import PodUid, next_due
from kubelet_trio.volumes import VolumeManager


@dataclass(slots=True)
class VolumeSizes:
    """The pods that are being looked at."""

    volumes: VolumeManager
    running: Callable[[], Mapping[PodUid, Pod]]  # the pods with a running container
    exists: Callable[[PodUid], bool]  # whether a pod has a worker, which will forget it
    period: float = 60.0  # seconds
    _busy: set[PodUid] = field(default_factory=set)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Look at all claims once a period, until cancelled; ready at once."""
        task_status.started()
        self._busy.clear()  # an earlier life was cancelled in the middle
        async with trio.open_nursery() as looks:
            while True:
                await trio.sleep_until(next_due(self.period))
                if not self.volumes.growing.has_any:
                    continue
                for uid, pod in self.running().items():
                    if uid not in self._busy:
                        self._busy.add(uid)
                        looks.start_soon(self._look, uid, pod, name=f"volume sizes of {uid}")

    async def _look(self, uid: PodUid, pod: Pod) -> None:
        try:
            await self.volumes.growing.grow(pod)
        finally:
            self._busy.discard(uid)
            # What was read for it after its worker had ended would be held for ever.
            if not self.exists(uid):
                self.volumes.growing.forget(uid)
