"""When the manager looks: every ten seconds, or when the kernel says so."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ParamSpec, TypeVar

import trio
from lightkube.models.core_v1 import Pod
from trio.testing import MockClock

from kubelet_trio.cgroups import CgroupHost
from kubelet_trio.containers import NodeSettings
from kubelet_trio.gc import RECLAIM_ERRORS
from kubelet_trio.model import EventType, ObjectRef, PodUid, inline_offload
from kubelet_trio.pressure import (
    EvictionManager,
    EvictionPolicy,
    FileSystems,
    NodeSignals,
    Observation,
    Reclaim,
    UsageReader,
    parse_thresholds,
)
from kubelet_trio.testing import FakeRuntime

MI = 1 << 20

P = ParamSpec("P")
T = TypeVar("T")


class World:
    """Signals and a kernel that a test writes; nobody runs."""

    def __init__(self) -> None:
        self.available = 900 * MI
        self.looks: list[float] = []
        self.asked: list[Mapping[str, int]] = []
        self.short = trio.Event()

    def observe(self, places: FileSystems) -> Mapping[str, Observation]:
        self.looks.append(trio.current_time())
        return {
            "memory.available": Observation(self.available, 1000 * MI),
            "allocatableMemory.available": Observation(self.available, 500 * MI),
        }

    async def wait(self, below: Mapping[str, int]) -> None:
        self.asked.append(below)
        await self.short.wait()

    def running(self) -> Sequence[tuple[PodUid, Pod]]:
        return ()

    def evict(
        self, uid: PodUid, grace_period: int, message: str, *, is_over_limit: bool = False
    ) -> None:
        raise AssertionError("nobody runs")

    async def wait_ended(self, uid: PodUid) -> None:
        await trio.sleep_forever()

    def emit(self, involved: ObjectRef, type_: EventType, reason: str, message: str) -> None:
        pass

    def emit_annotated(
        self,
        involved: ObjectRef,
        type_: EventType,
        reason: str,
        message: str,
        annotations: Mapping[str, str],
    ) -> None:
        raise AssertionError("nobody runs")


async def _nothing() -> None:
    await trio.lowlevel.checkpoint()


def manager(world: World, base: Path, policy: EvictionPolicy) -> EvictionManager:
    runtime, node = FakeRuntime(), NodeSettings("node", "node")
    signals = NodeSignals(CgroupHost(1, {}))
    return EvictionManager(
        policy=policy,
        signals=world,
        usage=UsageReader(runtime, lambda: node, signals, inline_offload),
        pods=world,
        reclaim=Reclaim(_nothing, _nothing, RECLAIM_ERRORS),
        runtime=runtime,
        node_name="node",
        root_dir=str(base),
        events=world,
        offload=inline_offload,
        disk_offload=inline_offload,
        wake=world if policy.kernel_notification else None,
    )


async def test_the_kernels_word_comes_before_the_next_ten_seconds(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    hard = parse_thresholds({"memory.available": "10%"}, enforces_pods=True)
    world = World()
    guard = manager(world, tmp_path, EvictionPolicy(hard, kernel_notification=True))
    start = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(guard.run)
        await trio.sleep(23)
        # Percentages are of what there is, as last seen.
        assert world.asked[-1] == {
            "memory.available": 100 * MI + 1,  # the share is kept in 32 bits
            "allocatableMemory.available": 50 * MI,
        }
        world.available = 20 * MI
        world.short.set()
        await trio.sleep(0.1)
        assert guard.pressure.value.memory
        # What lasts is looked at each second, and no oftener.
        await trio.sleep(10)
        nursery.cancel_scope.cancel()
    since = [round(at - start) for at in world.looks]
    assert since[:4] == [0, 10, 20, 23]
    assert all(b - a >= 1 for a, b in zip(world.looks, world.looks[1:], strict=False))


async def test_without_it_there_are_the_ten_seconds(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    world = World()
    policy = EvictionPolicy(parse_thresholds({"memory.available": "10%"}))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(manager(world, tmp_path, policy).run)
        await trio.sleep(95)
        nursery.cancel_scope.cancel()
    assert len(world.looks) == 10


async def test_a_file_system_that_hangs_leaves_memory_watched(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """One dead mount, and what is read of it has no end: its threads are all taken."""

    async def hangs(fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        await trio.sleep(10)
        raise TimeoutError("file-systems: it has not returned within 10 s")

    world = World()
    policy = EvictionPolicy(parse_thresholds({"memory.available": "100Mi"}))
    guard = replace(manager(world, tmp_path, policy), disk_offload=hangs)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(guard.run)
        await trio.sleep(60)
        assert not guard.pressure.value.memory
        world.available = 20 * MI
        await trio.sleep(35)
        assert guard.pressure.value.memory
        nursery.cancel_scope.cancel()


async def test_signals_that_cannot_be_read_in_time_are_read_later(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    is_well = False

    async def slow(fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        if not is_well:
            raise TimeoutError("signals: it has not returned within 10 s")
        return await inline_offload(fn, *args, **kwargs)

    world = World()
    policy = EvictionPolicy(parse_thresholds({"memory.available": "100Mi"}))
    guard = replace(manager(world, tmp_path, policy), offload=slow, disk_offload=slow)
    world.available = 20 * MI
    async with trio.open_nursery() as nursery:
        nursery.start_soon(guard.run)
        await trio.sleep(60)
        assert not guard.pressure.value.memory
        is_well = True
        await trio.sleep(15)
        assert guard.pressure.value.memory
        nursery.cancel_scope.cancel()
