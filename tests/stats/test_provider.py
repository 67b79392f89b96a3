from __future__ import annotations

import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from trio.testing import MockClock

from kubelet_trio.cri import v1
from kubelet_trio.model import ContainerId, PodUid, SandboxId, inline_offload
from kubelet_trio.stats import (
    ContainerSubject,
    Host,
    PodSubject,
    StatsProvider,
    StatsSettings,
    VolumeUsage,
)
from kubelet_trio.testing import FakeRuntime, FaultKind, TrioClock
from tests.stats import trees

UID = PodUid(trees.UID)


class World:
    """A host on disk, a runtime, and a provider that reads both."""

    def __init__(self, base: Path, cgroups: bool = True, more: tuple[str, ...] = ()) -> None:
        self.base = base
        self.root = base / "root"
        self.cgroup = trees.CONTAINER_V2
        paths = (trees.POD_V2, self.cgroup) if cgroups else ()
        self.host: Host = trees.write_v2(base, *paths, *more)
        self.runtime = FakeRuntime()
        self.container = ContainerId(trees.CONTAINER)
        self.volumes = VolumeUsage(str(self.root), inline_offload, TrioClock())
        pod = PodSubject(
            UID,
            "web-0",
            "prod",
            (ContainerSubject(self.container, "web", "web:1", 101),),
            sandbox_id=SandboxId(trees.SANDBOX),
            volumes=frozenset({"scratch"}),
            local_volumes=frozenset({"scratch"}),
        )
        self.pods: tuple[PodSubject, ...] = (pod,)
        self.provider = StatsProvider(
            StatsSettings("node", str(self.root), ("/kubepods.slice", "/kubepods")),
            self.host,
            self.runtime,
            lambda: self.pods,
            lambda name: UID if name.startswith("kubepods-burstable-pod") else None,
            TrioClock(),
            inline_offload,
            self.volumes,
        )
        (self.root / "pods" / UID / "volumes" / "kubernetes.io~empty-dir" / "scratch").mkdir(
            parents=True
        )

    def set_cpu(self, microseconds: int) -> None:
        path = self.base / "cgroup" / self.cgroup.lstrip("/") / "cpu.stat"
        path.write_text(f"usage_usec {microseconds}\n")

    async def ask(self, *, only: bool = False) -> Any:
        answer = msgspec.json.decode(await self.provider.summary(only_cpu_and_memory=only))
        return answer["pods"][0]["containers"][0]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_answers_within_a_second_are_one_reading(
    world: World, autojump_clock: MockClock
) -> None:
    first = await world.ask()
    world.set_cpu(9_000_000)
    assert (await world.ask())["cpu"] == first["cpu"]
    await trio.sleep(1.5)
    assert (await world.ask())["cpu"]["usageCoreNanoSeconds"] == 9_000_000_000


async def test_places_on_one_file_system_have_the_same_figures(
    world: World, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Upstream's test of separate disks compares those of the node with those of containers."""
    reads: list[str] = []

    def writes_go_on(path: str) -> os.statvfs_result:
        reads.append(path)
        return os.statvfs_result((4096, 4096, 1000, 500, 500 - len(reads), 9, 9, 9, 0, 255))

    monkeypatch.setattr(os, "statvfs", writes_go_on)
    world.runtime.image_fs = v1.ImageFsInfoResponse(
        image_filesystems=[
            v1.FilesystemUsage(fs_id=v1.FilesystemIdentifier(mountpoint=str(world.base)))
        ],
        container_filesystems=[
            v1.FilesystemUsage(
                fs_id=v1.FilesystemIdentifier(mountpoint=str(world.root)),
                used_bytes=v1.UInt64Value(value=7),
            )
        ],
    )
    node = msgspec.json.decode(await world.provider.summary())["node"]
    runtime = node["runtime"]
    shown = node["fs"], runtime["imageFs"], runtime["containerFs"]
    assert len({fs["availableBytes"] for fs in shown}) == 1
    assert runtime["containerFs"]["usedBytes"] == 7


@pytest.mark.parametrize("only", [False, True])
async def test_a_pod_that_begins_within_the_second_is_in_the_answer(
    world: World, autojump_clock: MockClock, only: bool
) -> None:
    pods, world.pods = world.pods, ()
    empty = msgspec.json.decode(await world.provider.summary(only_cpu_and_memory=only))
    assert empty["pods"] == []
    world.pods = pods
    assert (await world.ask(only=only))["cpu"]["usageCoreNanoSeconds"] == 2_500_000_000


async def test_the_runtime_and_the_rest_of_the_system_have_their_cgroups(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    world = World(tmp_path, more=("/runtime", "/system", "/system/below"))
    system = (("runtime", "/runtime"), ("misc", "/system"), ("other", "/is/not/there"))
    world.provider.settings = replace(world.provider.settings, system=system)

    async def ask() -> dict[str, Any]:
        answer = msgspec.json.decode(await world.provider.summary(only_cpu_and_memory=True))
        return {each["name"]: each for each in answer["node"]["systemContainers"]}

    assert (await ask()).keys() == {"kubelet", "runtime", "misc", "pods"}
    await trio.sleep(10)
    found = await ask()
    assert found["runtime"]["cpu"]["usageNanoCores"] == 0
    assert found["misc"]["memory"]["usageBytes"]
    # The agent's own is its start, as under the Go kubelet; the others' that of their cgroups.
    began = datetime.fromtimestamp(world.provider.clock.time() - 12, UTC)
    own = datetime.fromisoformat(found["kubelet"]["startTime"])
    assert abs((own - began).total_seconds()) < 3
    mount = next(iter(world.provider.host.mounts.values()))
    made = int(Path(f"{mount}/runtime").stat().st_mtime)
    assert datetime.fromisoformat(found["runtime"]["startTime"]).timestamp() == made


@pytest.mark.parametrize("only", [False, True])
async def test_the_first_answer_has_a_rate(
    world: World, autojump_clock: MockClock, only: bool
) -> None:
    async def works() -> None:
        await trio.sleep(0.5)
        world.set_cpu(2_500_000 + 750_000)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(works)
        assert (await world.ask(only=only))["cpu"]["usageNanoCores"] == 750_000_000
        # Once is enough: whoever asks next is answered at once.
        began = trio.current_time()
        await world.ask(only=only)
        assert trio.current_time() == began


async def test_a_container_that_nobody_can_measure_delays_the_first_answer_alone(
    world: World, autojump_clock: MockClock
) -> None:
    (world.base / "cgroup" / world.cgroup.lstrip("/") / "cpu.stat").unlink()
    await world.ask(only=True)
    await trio.sleep(10)
    began = trio.current_time()
    await world.ask(only=True)
    assert trio.current_time() == began


async def test_those_who_ask_first_at_once_all_have_a_rate(
    world: World, autojump_clock: MockClock
) -> None:
    found = []

    async def ask() -> None:
        found.append((await world.ask())["cpu"]["usageNanoCores"])

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(ask)
    assert found == [0, 0, 0]


async def test_the_rate_is_taken_between_two_readings(
    world: World, autojump_clock: MockClock
) -> None:
    assert (await world.ask(only=True))["cpu"]["usageNanoCores"] == 0
    world.set_cpu(2_500_000 + 5_000_000)
    await trio.sleep(9)  # the base is a second older than the first answer
    assert (await world.ask(only=True))["cpu"]["usageNanoCores"] == 500_000_000
    world.set_cpu(2_500_000 + 5_000_000 + 20_000_000)
    await trio.sleep(10)
    assert (await world.ask(only=True))["cpu"]["usageNanoCores"] == 2_000_000_000


async def test_the_rate_is_of_now_where_nobody_asked_for_long(
    world: World, autojump_clock: MockClock
) -> None:
    await world.ask(only=True)
    await trio.sleep(3599)
    world.set_cpu(2_500_000 + 3_600_000_000)
    # The hour is all that is known.
    assert (await world.ask(only=True))["cpu"]["usageNanoCores"] == 1_000_000_000
    await trio.sleep(2)
    world.set_cpu(2_500_000 + 3_600_000_000 + 4_000_000)
    assert (await world.ask(only=True))["cpu"]["usageNanoCores"] == 2_000_000_000


async def test_a_container_that_begins_again_has_no_negative_rate(
    world: World, autojump_clock: MockClock
) -> None:
    await world.ask(only=True)
    world.set_cpu(0)
    await trio.sleep(10)
    assert "usageNanoCores" not in (await world.ask(only=True))["cpu"]


async def test_those_who_ask_at_once_share_a_reading(
    world: World, autojump_clock: MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(world.ask)
    assert len(world.runtime.calls_of("ListContainerStats")) == 1


async def test_cpu_and_memory_need_no_runtime_where_there_are_cgroups(
    world: World, autojump_clock: MockClock
) -> None:
    world.runtime.go_down()
    container = await world.ask(only=True)
    assert container["cpu"]["usageCoreNanoSeconds"] == 2_500_000_000
    assert world.runtime.calls_of("ListContainerStats") == []


async def test_a_runtime_that_hangs_delays_the_answer_and_does_not_stop_it(
    world: World, autojump_clock: MockClock
) -> None:
    world.runtime.faults.add(FaultKind.HANG, times=None)
    with trio.fail_after(60):
        container = await world.ask()
    assert container["cpu"]["usageCoreNanoSeconds"] == 2_500_000_000


async def test_without_cgroups_the_runtime_is_believed(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, cgroups=False)
    stats = v1.ContainerStats(
        attributes=v1.ContainerAttributes(id=world.container),
        cpu=v1.CpuUsage(timestamp=1, usage_core_nano_seconds=v1.UInt64Value(value=77)),
        memory=v1.MemoryUsage(
            working_set_bytes=v1.UInt64Value(value=5), usage_bytes=v1.UInt64Value(value=8)
        ),
        writable_layer=v1.FilesystemUsage(used_bytes=v1.UInt64Value(value=9)),
    )

    async def told(
        uid: PodUid | None = None, *, layers_only: bool = False
    ) -> list[v1.ContainerStats]:
        await trio.lowlevel.checkpoint()
        assert not layers_only
        return [stats]

    monkeypatch.setattr(world.runtime, "list_container_stats", told)
    container = await world.ask()
    assert container["cpu"]["usageCoreNanoSeconds"] == 77
    assert container["memory"]["workingSetBytes"] == 5
    assert container["rootfs"]["usedBytes"] == 9


async def test_volumes_are_measured_once_a_period(world: World, autojump_clock: MockClock) -> None:
    volume = world.root / "pods" / UID / "volumes" / "kubernetes.io~empty-dir" / "scratch"

    async def used() -> int:
        answer = msgspec.json.decode(await world.provider.summary())
        (found,) = answer["pods"][0]["volume"]
        assert found["name"] == "scratch"
        return int(found["usedBytes"])

    async with trio.open_nursery() as nursery:
        await nursery.start(world.volumes.run)
        before = await used()
        (volume / "file").write_bytes(b"x" * 100_000)
        await trio.sleep(30)
        assert await used() == before
        await trio.sleep(31)
        assert await used() >= before + 100_000
        nursery.cancel_scope.cancel()


async def test_a_scrape_measures_no_volumes(world: World, autojump_clock: MockClock) -> None:
    volume = world.root / "pods" / UID / "volumes" / "kubernetes.io~empty-dir" / "scratch"
    async with trio.open_nursery() as nursery:
        await nursery.start(world.volumes.run)
        await world.provider.cadvisor()
        (volume / "file").write_bytes(b"x" * 100_000)
        await trio.sleep(2)
        answer = msgspec.json.decode(await world.provider.summary())
        # It is the first to ask for them: a measurement would be believed for a minute.
        assert answer["pods"][0]["volume"][0]["usedBytes"] >= 100_000
        nursery.cancel_scope.cancel()


async def test_the_pages(world: World, autojump_clock: MockClock) -> None:
    assert 'container="web"' in await world.provider.resource()
    assert b'pod="web-0"' in b"".join(await world.provider.cadvisor())
