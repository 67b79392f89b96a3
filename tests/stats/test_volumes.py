"""Volumes are measured for those who ask, each pod on its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from kubelet_trio.model import PodUid, Purpose, inline_offload, thread_offload
from kubelet_trio.model.threads import BOUNDS
from kubelet_trio.stats import PodSubject, VolumeUsage, volumes
from kubelet_trio.stats.usage import Filesystem
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
        self, root: str, pod: PodSubject, names: Mapping[str, str], now: float
    ) -> dict[str, Filesystem]:
        self.asked.append(pod.uid)
        if pod.uid in self.hung:
            self.server.wait(60)
        return {"data": Filesystem(now, used=len(self.asked))}


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
    found = volumes.measure_volumes(str(tmp_path), pod, {"pv-1": "data", "tmp": "tmp"}, 1.0)
    assert set(found) == {"data", "tmp"}


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
