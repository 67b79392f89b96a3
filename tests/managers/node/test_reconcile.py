"""The CPU sets of running containers follow the state."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock, wait_all_tasks_blocked

from kubelet_trio.cri import RuntimeCallError, v1
from kubelet_trio.managers import (
    CheckpointKeeper,
    ContainerShare,
    CpusetReconciler,
    ResourceManagers,
)
from kubelet_trio.model import (
    ContainerId,
    ContainerRecord,
    ContainerState,
    Meter,
    PodUid,
    RuntimePod,
    SandboxId,
    inline_offload,
)
from tests.managers.node.slots import load_slots
from tests.managers.pods import container, pod

PERIOD = 10.0


@dataclass
class Containers:
    """A runtime that sets CPU sets, late or never if told so."""

    cpus: dict[ContainerId, str] = field(default_factory=dict)
    calls: list[tuple[ContainerId, str]] = field(default_factory=list)
    takes: dict[ContainerId, float] = field(default_factory=dict)
    refuses: set[ContainerId] = field(default_factory=set)

    async def update_container_resources(
        self, container_id: ContainerId, resources: v1.LinuxContainerResources
    ) -> None:
        assert resources == v1.LinuxContainerResources(cpuset_cpus=resources.cpuset_cpus)
        self.calls.append((container_id, resources.cpuset_cpus))
        await trio.sleep(self.takes.get(container_id, 0))
        if container_id in self.refuses:
            raise RuntimeCallError("UpdateContainerResources", "no such cgroup")
        self.cpus[container_id] = resources.cpuset_cpus


class World:
    """A node with running containers `web` of pods `shared-0`, `shared-1` and so on."""

    def __init__(self, root: Path, count: int = 2) -> None:
        keeper = CheckpointKeeper(root, inline_offload)
        self.managers = ResourceManagers(load_slots(root), keeper, Meter())
        self.runtime = Containers()
        self.pods = [self.observed(f"shared-{n}") for n in range(count)]
        runtime: Any = self.runtime
        self.reconciler = CpusetReconciler(self.managers, runtime, lambda: self.pods, PERIOD)

    @staticmethod
    def observed(uid: str, state: ContainerState = ContainerState.RUNNING) -> RuntimePod:
        sandbox = SandboxId("s")
        record = ContainerRecord(ContainerId(f"c-{uid}"), "web", sandbox, state, 0, 0.0)
        return RuntimePod(PodUid(uid), uid, "default", containers=(record,))

    def admit(self, uid: str, cpus: str) -> None:
        assert self.managers.admit(pod(container("web", cpus), uid=uid)) is None

    @property
    def cpus(self) -> dict[str, str]:
        return {str(cid).removeprefix("c-"): cpus for cid, cpus in self.runtime.cpus.items()}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_containers_of_before_are_updated_once(
    world: World, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    await nursery.start(world.reconciler.run)
    await trio.sleep(10 * PERIOD)
    assert world.cpus == {"shared-0": "0-7", "shared-1": "0-7"}
    assert len(world.runtime.calls) == 2


async def test_a_change_reaches_them_at_once(
    world: World, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    await nursery.start(world.reconciler.run)
    await wait_all_tasks_blocked()
    world.admit("own", "2")
    await wait_all_tasks_blocked()
    assert set(world.cpus.values()) == {"2-7"}
    world.managers.retain({PodUid("shared-0"), PodUid("shared-1")})
    await wait_all_tasks_blocked()
    assert set(world.cpus.values()) == {"0-7"}


async def test_a_container_that_was_made_with_the_right_set_is_left_alone(
    world: World, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    one = pod(container("web", "1"), uid="shared-0")
    given = ContainerShare(cpuset_cpus="0-7")
    world.managers.note_started(one, container("web", "1"), ContainerId("c-shared-0"), given)
    await nursery.start(world.reconciler.run)
    await trio.sleep(5 * PERIOD)
    assert [str(c) for c, _ in world.runtime.calls] == ["c-shared-1"]


async def test_a_container_that_was_made_before_a_change_is_updated_when_it_runs(
    world: World, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    await nursery.start(world.reconciler.run)
    await wait_all_tasks_blocked()
    share = world.managers.share(PodUid("late"), "web")
    world.admit("own", "2")  # between its creation and its start
    await wait_all_tasks_blocked()
    world.pods.append(world.observed("late"))
    late = pod(container("web", "1", limit="2"), uid="late")
    world.managers.note_started(late, container("web", "1"), ContainerId("c-late"), share)
    await wait_all_tasks_blocked()
    assert world.cpus["late"] == "2-7"


async def test_only_running_containers_are_updated(
    world: World, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    world.pods = [World.observed("a", ContainerState.EXITED)]
    await nursery.start(world.reconciler.run)
    await trio.sleep(5 * PERIOD)
    assert world.runtime.calls == []


async def test_a_call_that_hangs_delays_no_other_container(
    world: World, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    world.runtime.takes[ContainerId("c-shared-0")] = 1000
    await nursery.start(world.reconciler.run)
    await trio.sleep(PERIOD)
    world.admit("own", "2")
    await trio.sleep(PERIOD)
    assert world.cpus == {"shared-1": "2-7"}
    await trio.sleep(3000)
    assert world.cpus == {"shared-0": "2-7", "shared-1": "2-7"}  # also the change meanwhile


async def test_a_call_that_fails_is_made_again_and_logged_once_a_change(
    world: World, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    world.runtime.refuses.add(ContainerId("c-shared-0"))
    with capture_logs() as logs:
        await nursery.start(world.reconciler.run)
        await trio.sleep(5 * PERIOD)
        world.admit("own", "2")
        await trio.sleep(5 * PERIOD)
    told = [entry["cpus"] for entry in logs if entry["event"] == "container.cpus_not_set"]
    assert told == ["0-7", "2-7"]
    assert len(world.runtime.calls) > 10
    world.runtime.refuses.clear()
    await trio.sleep(PERIOD)
    assert world.cpus["shared-0"] == "2-7"


async def test_many_containers_take_few_places(
    tmp_path: Path, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    world = World(tmp_path, count=40)
    world.runtime.takes = {ContainerId(f"c-shared-{n}"): 1.0 for n in range(40)}
    await nursery.start(world.reconciler.run)
    await trio.sleep(0.5)
    assert len(world.runtime.calls) == 8
    await trio.sleep(5)
    assert len(world.cpus) == 40


@pytest.mark.parametrize("at", range(12))
async def test_it_may_be_cancelled_at_any_time_and_goes_on(
    world: World, autojump_clock: MockClock, at: int
) -> None:
    world.runtime.takes = {ContainerId("c-shared-0"): 3.0, ContainerId("c-shared-1"): 5.0}
    for moment in (at * 1.0, 100.0):
        with trio.move_on_after(moment):
            async with trio.open_nursery() as nursery:
                await nursery.start(world.reconciler.run)
                await trio.sleep(2)
                if not world.managers.holds(PodUid("own")):
                    world.admit("own", "2")
    assert world.cpus == {"shared-0": "2-7", "shared-1": "2-7"}
