"""Volumes are measured for those who ask, each pod on its own."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from kubelet_trio.model import PodUid, Purpose, inline_offload, thread_offload
from kubelet_trio.model.threads import BOUNDS
from kubelet_trio.stats import PodSubject, VolumeUsage, volumes
from kubelet_trio.stats.driver_volumes import DriverStatsError, DriverVolume
from kubelet_trio.stats.usage import Filesystem
from kubelet_trio.stats.volumes import MeasuredVolumes
from kubelet_trio.testing import TrioClock

HUNG, WELL = PodUid("hung"), PodUid("well")


def subject(uid: PodUid) -> PodSubject:
    return PodSubject(uid=uid, name=uid, namespace="ns", volumes=frozenset({"data"}))


@pytest.fixture
def clock() -> MockClock:
    """Time that passes faster: the autojump clock knows of no threads."""
    return MockClock(rate=50)


class Disk:
    """Measures; the volumes of pods in `hung` hang until `server` is back."""

    def __init__(self) -> None:
        self.server = threading.Event()
        self.hung = {HUNG}
        self.asked: list[PodUid] = []

    def measure(
        self,
        root: str,
        pod: PodSubject,
        names: Mapping[str, str],
        now: float,
        measuring: frozenset[str],
    ) -> MeasuredVolumes:
        self.asked.append(pod.uid)
        if pod.uid in self.hung:
            self.server.wait(60)
        return MeasuredVolumes({"data": Filesystem(now, used=len(self.asked))})


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    disk = Disk()
    monkeypatch.setattr(volumes, "measure_volumes", disk.measure)
    yield disk
    disk.server.set()


async def measured(usage: VolumeUsage, pods: list[PodSubject], uid: PodUid, within: float) -> None:
    """Ask every ten seconds, as a scraper would, until a pod has figures."""
    for _ in range(int(within / 10)):
        if uid in await usage.usage(pods):
            return
        await trio.sleep(10)
    raise AssertionError(f"{uid} is not measured within {within} s")


async def test_a_volume_that_hangs_keeps_no_other_pod_from_being_measured(
    disk: Disk, clock: MockClock, tmp_path: Path
) -> None:
    usage = VolumeUsage(str(tmp_path), thread_offload.of(Purpose.VOLUME_STATS), TrioClock())
    pods = [subject(HUNG), subject(WELL)]
    async with trio.open_nursery() as nursery:
        await nursery.start(usage.run)
        seen = set()
        for _ in range(8):
            known = await usage.usage(pods)
            assert HUNG not in known
            if WELL in known:
                seen.add(known[WELL]["data"].used)
            await trio.sleep(30)
        assert len(seen) >= 3
        # One thread hangs, however often the pod is asked for.
        assert disk.asked.count(HUNG) == 1
        disk.server.set()
        await measured(usage, pods, HUNG, within=150)
        nursery.cancel_scope.cancel()


async def test_many_pods_on_a_dead_server_leave_threads_for_others(
    disk: Disk, clock: MockClock, tmp_path: Path
) -> None:
    usage = VolumeUsage(str(tmp_path), thread_offload.of(Purpose.VOLUME_STATS), TrioClock())
    dead = [PodUid(f"dead-{n}") for n in range(BOUNDS[Purpose.VOLUME_STATS].threads // 2)]
    disk.hung = set(dead)
    pods = [subject(uid) for uid in (*dead, WELL)]
    async with trio.open_nursery() as nursery:
        await nursery.start(usage.run)
        await measured(usage, pods, WELL, within=3600)
        nursery.cancel_scope.cancel()


def test_a_claims_volume_is_found_by_the_name_of_its_persistent_volume(tmp_path: Path) -> None:
    pod = PodSubject(
        uid=WELL,
        name="web",
        namespace="ns",
        volumes=frozenset({"data", "tmp"}),
        claims={"data": "web-data"},
    )
    for plugin, name in (("local-volume", "pv-1"), ("empty-dir", "tmp"), ("empty-dir", "old")):
        (tmp_path / f"pods/{WELL}/volumes/kubernetes.io~{plugin}/{name}").mkdir(parents=True)
    names = {"pv-1": "data", "tmp": "tmp"}
    assert set(volumes.measure_volumes(str(tmp_path), pod, names, 1.0).found) == {"data", "tmp"}


async def test_how_long_measuring_takes_is_told_by_its_source(
    clock: MockClock, tmp_path: Path
) -> None:
    (tmp_path / f"pods/{WELL}/volumes/kubernetes.io~empty-dir/data").mkdir(parents=True)
    usage = VolumeUsage(str(tmp_path), inline_offload, TrioClock(), names=every_name)
    async with trio.open_nursery() as nursery:
        await nursery.start(usage.run)
        await measured(usage, [subject(WELL)], WELL, within=60)
        nursery.cancel_scope.cancel()
    name = "kubelet_volume_metric_collection_duration_seconds"
    [(labels, took)] = usage.meter.histograms(name)
    assert (labels, took.count) == (("du",), 1)


async def every_name(pod: PodSubject) -> Mapping[str, str]:
    await trio.lowlevel.checkpoint()
    return {name: name for name in pod.volumes}


async def test_names_that_do_not_come_do_not_stop_the_measuring(
    disk: Disk, autojump_clock: MockClock, tmp_path: Path
) -> None:
    async def names(pod: PodSubject) -> Mapping[str, str]:
        await trio.sleep_forever()
        raise AssertionError

    usage = VolumeUsage(str(tmp_path), inline_offload, TrioClock(), names=names)
    async with trio.open_nursery() as nursery:
        await nursery.start(usage.run)
        await measured(usage, [subject(WELL)], WELL, within=60)
        nursery.cancel_scope.cancel()


class Drivers:
    """CSI drivers that measure, that answer with an error, or that do not answer before `back`."""

    def __init__(self, *measuring: str) -> None:
        self.measuring = frozenset(measuring)
        self.failing: set[str] = set()
        self.hung: set[str] = set()
        self.back = trio.Event()
        self.asked: list[tuple[str, str, str]] = []
        self.answer = Filesystem(0.0, capacity=100, used=40)

    async def volume_stats(self, driver: str, handle: str, path: str) -> Filesystem:
        assert driver in self.measuring
        self.asked.append((driver, handle, path))
        await trio.lowlevel.checkpoint()
        if driver in self.hung:
            await self.back.wait()
        if driver in self.failing:
            raise DriverStatsError("rpc error: code = Internal desc = no")
        return self.answer


def publish(root: Path, uid: PodUid, name: str, driver: str) -> str:
    directory = root / f"pods/{uid}/volumes/kubernetes.io~csi/{name}"
    (directory / "mount").mkdir(parents=True)
    (directory / "mount" / "file").write_bytes(b"x" * 4096)
    data = {"driverName": driver, "volumeHandle": f"h-{name}"}
    (directory / "vol_data.json").write_text(json.dumps(data))
    return str(directory / "mount")


def csi_pod(uid: PodUid, *names: str) -> PodSubject:
    return PodSubject(uid=uid, name=uid, namespace="ns", volumes=frozenset(names))


async def test_a_drivers_volumes_are_measured_by_it(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    drivers = Drivers("able")
    path = publish(tmp_path, WELL, "data", "able")
    publish(tmp_path, WELL, "more", "unable")
    usage = VolumeUsage(str(tmp_path), inline_offload, TrioClock(), drivers=drivers)
    async with trio.open_nursery() as nursery:
        await nursery.start(usage.run)
        # Already the first answer has what the drivers say.
        (known,) = (await usage.usage([csi_pod(WELL, "data", "more")])).values()
        nursery.cancel_scope.cancel()
    assert drivers.asked == [("able", "h-data", path)]
    assert (known["data"].capacity, known["data"].used) == (100, 40)
    assert known["data"].time > 0
    # A driver without GET_VOLUME_STATS: its file system, as any other's.
    assert (known["more"].capacity or 0) > 100


async def test_a_driver_that_hangs_delays_no_other_volume_and_is_asked_once(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    drivers = Drivers("able", "hangs")
    drivers.hung = {"hangs"}
    for number in range(12):
        publish(tmp_path, HUNG, f"v{number}", "hangs")
    publish(tmp_path, WELL, "data", "able")
    publish(tmp_path, HUNG, "good", "able")
    pods = [csi_pod(HUNG, "good", *(f"v{n}" for n in range(12))), csi_pod(WELL, "data")]
    usage = VolumeUsage(str(tmp_path), inline_offload, TrioClock(), drivers=drivers)
    async with trio.open_nursery() as nursery:
        await nursery.start(usage.run)
        began = trio.current_time()
        known = await usage.usage(pods)
        assert trio.current_time() - began <= 1
        assert (set(known[HUNG]), set(known[WELL])) == ({"good"}, {"data"})
        for _ in range(3):
            await trio.sleep(61)
            began = trio.current_time()
            known = await usage.usage(pods)
            assert trio.current_time() - began <= 1
        assert known[WELL]["data"].time > 120
        # At most four calls at a time, and never two for one volume.
        waiting = [asked for asked in drivers.asked if asked[0] == "hangs"]
        assert len(waiting) <= 8
        drivers.hung = set()
        drivers.back.set()
        await trio.sleep(61)
        await usage.usage(pods)
        await trio.sleep(61)
        assert len((await usage.usage(pods))[HUNG]) == 13
        nursery.cancel_scope.cancel()


async def test_a_driver_that_fails_leaves_the_last_values(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    drivers, pods = Drivers("able"), [csi_pod(WELL, "data")]
    publish(tmp_path, WELL, "data", "able")
    usage = VolumeUsage(str(tmp_path), inline_offload, TrioClock(), drivers=drivers)
    async with trio.open_nursery() as nursery:
        await nursery.start(usage.run)
        before = await usage.usage(pods)
        drivers.failing = {"able"}
        await trio.sleep(61)
        assert await usage.usage(pods) == before
        assert len(drivers.asked) == 2
        # A pod that is gone is forgotten.
        assert await usage.usage([]) == {}
        assert await usage.usage(pods) == {WELL: {}}
        nursery.cancel_scope.cancel()


async def test_an_abnormal_volume_is_told_each_time_with_the_reason(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    told: list[tuple[str, str]] = []

    def on_abnormal(volume: DriverVolume, message: str) -> None:
        told.append((volume.name, message))

    drivers, pods = Drivers("able"), [csi_pod(WELL, "data")]
    drivers.answer = Filesystem(0.0, abnormal=True, message="no path to the disk")
    publish(tmp_path, WELL, "data", "able")
    usage = VolumeUsage(
        str(tmp_path), inline_offload, TrioClock(), drivers=drivers, on_abnormal=on_abnormal
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(usage.run)
        for _ in range(2):
            (known,) = (await usage.usage(pods)).values()
            assert known["data"].abnormal
            await trio.sleep(61)
        drivers.answer = Filesystem(0.0, abnormal=False)
        await usage.usage(pods)
        nursery.cancel_scope.cancel()
    assert told == [("data", "no path to the disk")] * 2


def test_a_block_volume_of_a_driver_is_asked_for_where_it_is_published(tmp_path: Path) -> None:
    link = tmp_path / f"pods/{WELL}/volumeDevices/kubernetes.io~csi/pv-1"
    link.parent.mkdir(parents=True)
    link.symlink_to("/dev/null")
    base = tmp_path / "plugins/kubernetes.io/csi/volumeDevices"
    (base / "pv-1/data").mkdir(parents=True)
    (base / "pv-1/data/vol_data.json").write_text('{"driverName":"able","volumeHandle":"h"}')
    pod, names = csi_pod(WELL, "data"), {"pv-1": "data"}
    measured = volumes.measure_volumes(str(tmp_path), pod, names, 1.0, frozenset({"able"}))
    published = f"{base}/publish/pv-1/{WELL}"
    assert measured == MeasuredVolumes({}, (DriverVolume(WELL, "data", "able", "h", published),))
    # /dev/null is no block device: nothing is measured, and nothing opened.
    assert volumes.measure_volumes(str(tmp_path), pod, names, 1.0) == MeasuredVolumes()
