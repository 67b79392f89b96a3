"""The child `stats`: measure the usage of pods' volumes in the background.

To walk a volume can take minutes, so responses come from a cache, which is at most `period` old
(`volumeStatsAggPeriod`, 1m) unless the disk is slower. A request for a pod that is due wakes the
child, which measures several pods concurrently. The request waits briefly for them, so that
on a small node already the first response has them. Without requests nothing is measured.

A file server that does not answer blocks one thread for each pod with such a volume. Such a pod
keeps its last values, is not measured again before its thread has returned, and delays no other.
"""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import trio

from kubelet_trio.model import Bell, Offload, PodUid, WallClock, get_logger
from kubelet_trio.stats.read import disk_usage, read_filesystem
from kubelet_trio.stats.subjects import PodSubject
from kubelet_trio.stats.usage import Filesystem

log = get_logger()

_PATIENCE = 0.5  # seconds that a request waits for pods that are due
_WALK_LIMIT = 30.0  # seconds for one volume; one that takes longer has no usage, only capacity
_POD_LIMIT = 45.0  # seconds for all volumes of a pod: less than the offload's deadline
_AT_A_TIME = 8  # pods
_NAMES_LIMIT = 5.0  # seconds for the names of a pod's volumes: claims are objects
_CSI = "kubernetes.io~csi"


async def own_names(pod: PodSubject) -> Mapping[str, str]:
    """Return the names of volumes that are on disk under their names in the pod."""
    await trio.lowlevel.checkpoint()
    return {name: name for name in pod.volumes if name not in pod.claims}


@dataclass(slots=True)
class VolumeUsage:
    """The cache, and the task that fills it.

    `names` returns the names in the pod's spec of its volumes on disk, by the names there: a
    claim's volume has the name of its persistent volume.
    """

    root_dir: str
    offload: Offload
    clock: WallClock
    period: float = 60.0  # less than or equal to 0: volumes are not measured
    names: Callable[[PodSubject], Awaitable[Mapping[str, str]]] = own_names
    _known: dict[PodUid, tuple[float, Mapping[str, Filesystem]]] = field(default_factory=dict)
    _due: dict[PodUid, PodSubject] = field(default_factory=dict)
    _in_threads: set[PodUid] = field(default_factory=set)
    _wake: Bell = field(default_factory=Bell)
    _done: trio.Event = field(default_factory=trio.Event)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Measure requested pods until cancelled; ready at once."""
        task_status.started()
        while True:
            await self._wake.wait_ring()
            while self._due:
                await self._measure_due()
            # All waiters of this round go on; later requests wait for the next one.
            self._done.set()
            self._done = trio.Event()

    async def _measure_due(self) -> None:
        turns = trio.Semaphore(_AT_A_TIME)
        async with trio.open_nursery() as measuring:
            for pod in list(self._due.values()):
                measuring.start_soon(self._measure_pod, pod, turns, name=f"volumes of {pod.uid}")

    async def _measure_pod(self, pod: PodSubject, turns: trio.Semaphore) -> None:
        async with turns:
            names: Mapping[str, str] = {}
            with trio.move_on_after(_NAMES_LIMIT):
                names = await self.names(pod)
            try:
                found = await self.offload(self._measure, pod, names, self.clock.time())
            except OSError as exc:
                # The last values stay, so that one dead mount does not empty the page.
                log.warning("stats.volumes_hang", pod=f"{pod.namespace}/{pod.name}", error=str(exc))
            else:
                self._known[pod.uid] = (trio.current_time(), found)
            self._due.pop(pod.uid, None)

    def _measure(
        self, pod: PodSubject, names: Mapping[str, str], now: float
    ) -> Mapping[str, Filesystem]:
        # In the worker thread, which outlives its task on a dead mount: only the thread knows when
        # it is done.
        self._in_threads.add(pod.uid)
        try:
            return measure_volumes(self.root_dir, pod, names, now)
        finally:
            self._in_threads.discard(pod.uid)

    async def usage(self, pods: Iterable[PodSubject]) -> dict[PodUid, Mapping[str, Filesystem]]:
        """Return the last values of these pods' volumes; have those that are due measured."""
        wanted = {pod.uid: pod for pod in pods if pod.volumes}
        self._known = {uid: entry for uid, entry in self._known.items() if uid in wanted}
        self._due = {uid: pod for uid, pod in wanted.items() if self._is_due(uid)}
        if self._due and self.period > 0:
            done = self._done
            self._wake.ring()
            with trio.move_on_after(_PATIENCE):
                await done.wait()
        return {uid: entry[1] for uid, entry in self._known.items()}

    def _is_due(self, uid: PodUid) -> bool:
        if uid in self._in_threads:
            return False
        entry = self._known.get(uid)
        return entry is None or trio.current_time() - entry[0] >= self.period


def measure_volumes(
    root_dir: str, pod: PodSubject, names: Mapping[str, str], now: float
) -> dict[str, Filesystem]:
    """Return the usage of one pod's volumes that are on disk, by their names in the pod. Blocks.

    `names` are these names, by those on disk; others are not measured.
    """
    base = f"{root_dir}/pods/{pod.uid}/volumes"
    found: dict[str, Filesystem] = {}
    end = time.monotonic() + _POD_LIMIT
    for plugin in _names(base):
        for volume in _names(f"{base}/{plugin}"):
            if volume in names:
                measured = _measure(f"{base}/{plugin}/{volume}", plugin == _CSI, now, end)
                if measured is not None:
                    found[names[volume]] = measured
    return found


def _measure(path: str, is_csi: bool, now: float, end: float) -> Filesystem | None:
    # CSI mounts one level below the volume's directory. In other volumes a directory `mount` is the
    # container's own.
    inner = f"{path}/mount"
    path = inner if is_csi and os.path.ismount(inner) else path
    whole = read_filesystem(path, now)
    # As upstream (NewMetricsStatFS, NewMetricsDu in pkg/volume): a mount point counts by its
    # filesystem, other volumes file by file.
    if whole is None or os.path.ismount(path):
        return whole
    end = min(end, time.monotonic() + _WALK_LIMIT)
    size = disk_usage(path, lambda: time.monotonic() > end)
    used, inodes = size if size is not None else (None, None)
    return replace(whole, used=used, inodes_used=inodes)


def _names(path: str) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []
