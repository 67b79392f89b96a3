"""The child `stats`: measure the usage of pods' volumes in the background.

To walk a volume can take minutes, so responses come from a cache, which is at most `period` old
(`volumeStatsAggPeriod`, 1m) unless the disk is slower. A request for a pod that is due wakes the
child, which measures several pods concurrently. The request waits briefly for them, so that
on a small node already the first response has them. Without requests nothing is measured.

A file server that does not answer blocks one thread for each pod with such a volume. Such a pod
keeps its last values, is not measured again before its thread has returned, and delays no other.
CSI volumes are measured by their drivers, if these can (`driver_volumes`).
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import msgspec
import trio
from msgspec import structs

from kubelet_trio.model import Bell, Meter, Offload, PodUid, WallClock, get_logger, read_regular
from kubelet_trio.stats.driver_volumes import (
    DriverReadings,
    DriverStats,
    DriverVolume,
    NoDriverStats,
)
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
_DATA_LIMIT = 1 << 16  # bytes of a vol_data.json; the Go kubelet writes a few hundred
_SECTOR = 512  # bytes: the unit of `size` in sysfs, whatever the device's own


@dataclass(frozen=True, slots=True)
class MeasuredVolumes:
    """The volumes of a pod: those measured, by name, and those that their drivers measure."""

    found: Mapping[str, Filesystem] = field(default_factory=dict)
    of_drivers: tuple[DriverVolume, ...] = ()
    took: tuple[tuple[str, float], ...] = ()  # source and seconds of each measurement


async def own_names(pod: PodSubject) -> Mapping[str, str]:
    """Return the names of volumes that are on disk under their names in the pod."""
    await trio.lowlevel.checkpoint()
    return {name: name for name in pod.volumes if name not in pod.claims}


@dataclass(slots=True)
class VolumeUsage:
    """The cache, and the task that fills it.

    `names` returns the names in the pod's spec of its volumes on disk, by the names there: a
    claim's volume has the name of its persistent volume. `on_abnormal` is called with a volume
    and the reason, each time that its driver reports it as abnormal.
    """

    root_dir: str
    offload: Offload
    clock: WallClock
    period: float = 60.0  # less than or equal to 0: volumes are not measured
    names: Callable[[PodSubject], Awaitable[Mapping[str, str]]] = own_names
    drivers: DriverStats = field(default_factory=NoDriverStats)
    on_abnormal: Callable[[DriverVolume, str], None] = lambda _volume, _message: None
    meter: Meter = field(default_factory=Meter)
    _known: dict[PodUid, tuple[float, Mapping[str, Filesystem]]] = field(default_factory=dict)
    _due: dict[PodUid, PodSubject] = field(default_factory=dict)
    _in_threads: set[PodUid] = field(default_factory=set)
    _wake: Bell = field(default_factory=Bell)
    _done: trio.Event = field(default_factory=trio.Event)
    _readings: DriverReadings = field(init=False)

    def __post_init__(self) -> None:
        self._readings = DriverReadings(
            self.drivers, self.clock, self.on_abnormal, self._observe_duration
        )

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Measure requested pods until cancelled; ready at once."""
        async with trio.open_nursery() as asking:
            task_status.started()
            while True:
                await self._wake.wait_ring()
                answers: list[trio.Event] = []
                while self._due:
                    await self._measure_due(asking, answers)
                with trio.move_on_after(_PATIENCE):
                    for answered in answers:
                        await answered.wait()
                # All waiters of this round go on; later requests wait for the next one.
                self._done.set()
                self._done = trio.Event()

    async def _measure_due(self, asking: trio.Nursery, answers: list[trio.Event]) -> None:
        turns = trio.Semaphore(_AT_A_TIME)

        async def measure(pod: PodSubject) -> None:
            async with turns:
                answers.extend(self._readings.ask(await self._measure_pod(pod), asking))

        async with trio.open_nursery() as measuring:
            for pod in list(self._due.values()):
                measuring.start_soon(measure, pod, name=f"volumes of {pod.uid}")

    async def _measure_pod(self, pod: PodSubject) -> tuple[DriverVolume, ...]:
        """Measure a pod's volumes but those that their drivers measure; return these."""
        names: Mapping[str, str] = {}
        with trio.move_on_after(_NAMES_LIMIT):
            names = await self.names(pod)
        measuring = self.drivers.measuring
        try:
            measured = await self.offload(self._measure, pod, names, self.clock.time(), measuring)
        except OSError as exc:
            # The last values stay, so that one dead mount does not empty the page.
            log.warning("stats.volumes_hang", pod=f"{pod.namespace}/{pod.name}", error=str(exc))
            return ()
        else:
            self._known[pod.uid] = (trio.current_time(), measured.found)
            for source, took in measured.took:
                self._observe_duration(source, took)
            return measured.of_drivers
        finally:
            self._due.pop(pod.uid, None)

    def _observe_duration(self, source: str, took: float) -> None:
        name = "kubelet_volume_metric_collection_duration_seconds"
        self.meter.observe(name, took, (source,))

    def _measure(
        self, pod: PodSubject, names: Mapping[str, str], now: float, measuring: frozenset[str]
    ) -> MeasuredVolumes:
        # In the worker thread, which outlives its task on a dead mount: only the thread knows when
        # it is done.
        self._in_threads.add(pod.uid)
        try:
            return measure_volumes(self.root_dir, pod, names, now, measuring)
        finally:
            self._in_threads.discard(pod.uid)

    async def usage(self, pods: Iterable[PodSubject]) -> dict[PodUid, Mapping[str, Filesystem]]:
        """Return the last values of these pods' volumes; have those that are due measured."""
        wanted = {pod.uid: pod for pod in pods if pod.volumes}
        self._known = {uid: entry for uid, entry in self._known.items() if uid in wanted}
        self._due = {uid: pod for uid, pod in wanted.items() if self._is_due(uid)}
        self._readings.keep({uid: pod.volumes for uid, pod in wanted.items()})
        if self._due and self.period > 0:
            done = self._done
            self._wake.ring()
            with trio.move_on_after(_PATIENCE):
                await done.wait()
        return {
            uid: {**entry[1], **self._readings.of_pod(uid)} for uid, entry in self._known.items()
        }

    def _is_due(self, uid: PodUid) -> bool:
        if uid in self._in_threads:
            return False
        entry = self._known.get(uid)
        return entry is None or trio.current_time() - entry[0] >= self.period


def measure_volumes(
    root_dir: str,
    pod: PodSubject,
    names: Mapping[str, str],
    now: float,
    measuring: frozenset[str] = frozenset(),
) -> MeasuredVolumes:
    """Measure one pod's volumes on disk. Blocks.

    Args:
        root_dir: the agent's.
        pod: the pod.
        names: the volumes' names in the pod by those on disk; others are not measured.
        now: Unix seconds.
        measuring: the CSI drivers that measure their volumes themselves.
    """
    pod_dir = f"{root_dir}/pods/{pod.uid}"
    found: dict[str, Filesystem] = {}
    took: list[tuple[str, float]] = []
    asked: list[DriverVolume] = []
    end = time.monotonic() + _POD_LIMIT
    for plugin, volume, path in _paths(f"{pod_dir}/volumes", names):
        driver, handle = _csi_volume(f"{path}/vol_data.json") if plugin == _CSI else ("", "")
        if driver in measuring:
            asked.append(DriverVolume(pod.uid, names[volume], driver, handle, f"{path}/mount"))
        elif (measured := _measure(path, plugin == _CSI, now, end, took)) is not None:
            found[names[volume]] = measured
    for plugin, volume, path in _paths(f"{pod_dir}/volumeDevices", names):
        data = f"{root_dir}/plugins/kubernetes.io/csi/volumeDevices/{volume}/data/vol_data.json"
        driver, handle = _csi_volume(data) if plugin == _CSI else ("", "")
        if driver in measuring:
            published = f"{root_dir}/plugins/kubernetes.io/csi/volumeDevices/publish/{volume}"
            device = f"{published}/{pod.uid}"
            asked.append(DriverVolume(pod.uid, names[volume], driver, handle, device))
        elif (measured := _measure_device(path, now, took)) is not None:
            found[names[volume]] = measured
    return MeasuredVolumes(found, tuple(asked), tuple(took))


def _paths(base: str, names: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    for plugin in _names(base):
        for volume in _names(f"{base}/{plugin}"):
            if volume in names:
                yield plugin, volume, f"{base}/{plugin}/{volume}"


def _csi_volume(path: str) -> tuple[str, str]:
    """Return driver and handle in a vol_data.json; empty if it cannot be read."""
    try:
        data = msgspec.json.decode(read_regular(path, _DATA_LIMIT), type=dict[str, str])
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return "", ""
    return data.get("driverName", ""), data.get("volumeHandle", "")


def _measure_device(path: str, now: float, took: list[tuple[str, float]]) -> Filesystem | None:
    """Return the capacity of a block device (metricsBlock in pkg/volume); None if it is none."""
    began = time.perf_counter()
    # Its size is in sysfs: to open a device can hang, and can have side effects.
    try:
        found = os.stat(path)
        if not stat.S_ISBLK(found.st_mode):
            return None
        number = f"{os.major(found.st_rdev)}:{os.minor(found.st_rdev)}"
        sectors = int(_read_text(f"/sys/dev/block/{number}/size"))
    except (OSError, ValueError):
        return None
    took.append(("block", time.perf_counter() - began))
    return Filesystem(now, capacity=sectors * _SECTOR)


def _measure(
    path: str, is_csi: bool, now: float, end: float, took: list[tuple[str, float]]
) -> Filesystem | None:
    began = time.perf_counter()
    # CSI mounts one level below the volume's directory. In other volumes a directory `mount` is the
    # container's own.
    inner = f"{path}/mount"
    path = inner if is_csi and os.path.ismount(inner) else path
    whole = read_filesystem(path, now)
    # As upstream (NewMetricsStatFS, NewMetricsDu in pkg/volume): a mount point counts by its
    # filesystem, other volumes file by file.
    if whole is None or os.path.ismount(path):
        took.append(("statfs", time.perf_counter() - began))
        return whole
    end = min(end, time.monotonic() + _WALK_LIMIT)
    size = disk_usage(path, lambda: time.monotonic() > end)
    used, inodes = size if size is not None else (None, None)
    took.append(("du", time.perf_counter() - began))
    return structs.replace(whole, used=used, inodes_used=inodes)


def _names(path: str) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def _read_text(path: str) -> str:
    with open(path, encoding="ascii") as file:  # of the kernel
        return file.read(32)
