"""The CSINode at an API server that comes and goes, refuses, or lost the object."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import trio
from lightkube.models.core_v1 import Node
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.models.storage_v1 import CSIDriver, CSIDriverSpec, CSINode
from trio.testing import MockClock, wait_all_tasks_blocked
from trio_util import AsyncValue

from kubelet_trio.kube import KubeError, ServerFeatures
from kubelet_trio.model import Bell
from kubelet_trio.node.csi_limits import CsiLimits
from kubelet_trio.node.csi_node import NOT_YET, CsiNodeObject
from kubelet_trio.node.csi_object import NODE_ID, new_csi_node
from kubelet_trio.node.errors import CsiNodeError
from kubelet_trio.node.registration import NodeObject
from kubelet_trio.testing import FakeKube, KubeFaultKind
from tests.node.test_csi_object import DISK, Facts, plain

ERROR = KubeFaultKind.ERROR
NFS = Facts("nfs.example.com", "n")


class World:
    """A node with an API server, and its CSI drivers."""

    def __init__(self, *, is_registered: bool = True) -> None:
        self.kube = FakeKube()
        self.node = NodeObject()
        self.bell = Bell()
        self.drivers: AsyncValue[Mapping[str, Facts]] = AsyncValue({})
        self.csi = CsiNodeObject(self.kube.node("node-1"), "node-1", self.node, self.bell)
        if is_registered:
            self.register()

    def register(self) -> None:
        self.node.put(self.kube.add(Node(metadata=ObjectMeta(name="node-1"))))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            await nursery.start(self.csi.run, self.drivers)
            yield
            nursery.cancel_scope.cancel()

    def put(self, *drivers: Facts) -> None:
        self.drivers.value = {driver.name: driver for driver in drivers}

    def found(self) -> CSINode | None:
        return self.kube.find(CSINode, "node-1")

    def entries(self) -> list[str]:
        found = self.found()
        return [] if found is None else [entry["name"] for entry in plain(found)]

    def meta(self) -> ObjectMeta:
        node = self.kube.find(Node, "node-1")
        assert node is not None
        assert node.metadata is not None
        return node.metadata

    async def wait_entries(self, *names: str) -> None:
        with trio.fail_after(400):
            await self.kube.wait_until(lambda _kube: self.entries() == list(names))
        await wait_all_tasks_blocked()


async def test_the_node_is_not_ready_before_the_object_is_made(autojump_clock: MockClock) -> None:
    world = World(is_registered=False)
    async with world.running():
        await trio.sleep(30)
        assert world.csi.problem() == NOT_YET
        assert world.found() is None
        world.register()
        await wait_all_tasks_blocked()
        assert world.csi.problem() is None
        assert world.entries() == []
        found = world.found()
        assert found is not None
        assert found.metadata is not None
        (owner,) = found.metadata.ownerReferences or []
        assert (owner.kind, owner.name, owner.uid) == ("Node", "node-1", world.meta().uid)
        with trio.fail_after(0.1):
            await world.bell.wait_ring()


async def test_a_server_that_is_away_is_waited_for(autojump_clock: MockClock) -> None:
    world = World()
    world.kube.go_down()
    async with world.running():
        await trio.sleep(1000)
        assert world.csi.problem() == NOT_YET
        world.kube.come_back()
        await world.wait_entries()
        assert world.csi.problem() is None


async def test_a_node_that_may_not_read_it_yet_waits(autojump_clock: MockClock) -> None:
    world = World()
    no = KubeError(403, "Forbidden", "csinodes is forbidden")
    fault = world.kube.faults.add(ERROR, resource="csinodes", times=None, error=no)
    async with world.running():
        await trio.sleep(500)
        assert world.csi.problem() == NOT_YET
        world.kube.faults.lift(fault)
        await trio.sleep(2)
        assert world.csi.problem() is None


async def test_a_server_that_refuses_the_object_ends_the_agent(autojump_clock: MockClock) -> None:
    world = World()
    no = KubeError(403, "Forbidden", "not that one")
    world.kube.faults.add(ERROR, "create", "csinodes", times=None, error=no)
    gave_up = pytest.RaisesExc(CsiNodeError, match="Failed to initialize CSINode after retrying")
    with pytest.RaisesGroup(gave_up):
        async with world.running():
            await trio.sleep(120)
            assert world.csi.problem() == (
                "failed to initialize CSINode: error updating CSINode annotation: timed out "
                "waiting for the condition; caused by: not that one"
            )
            await trio.sleep(120)
    assert 140 <= trio.current_time() <= 160


async def test_conflicts_are_tried_again(autojump_clock: MockClock) -> None:
    world = World()
    async with world.running():
        await wait_all_tasks_blocked()
        busy = KubeError(409, "Conflict", "the object has been modified")
        world.kube.faults.add(ERROR, "update", "csinodes", times=3, error=busy)
        await world.csi.install(DISK)
        assert world.entries() == [DISK.name]
        world.kube.faults.add(ERROR, "update", "csinodes", times=4, error=busy)
        with pytest.raises(CsiNodeError) as refused:
            await world.csi.install(NFS)
        assert str(refused.value) == (
            "error updating CSINode object with CSI driver node info: error updating CSINode: "
            "timed out waiting for the condition; caused by: the object has been modified"
        )


async def test_a_driver_comes_and_goes(autojump_clock: MockClock) -> None:
    world = World()
    async with world.running():
        await wait_all_tasks_blocked()
        await world.csi.install(DISK)
        assert world.entries() == [DISK.name]
        assert (world.meta().labels or {})["example.com/zone"] == "a"
        assert (world.meta().annotations or {})[NODE_ID] == '{"disk.example.com":"i-1"}'
        assert world.node.value.value is not None
        assert world.node.value.value.metadata == world.meta()
        world.put(DISK, NFS)  # the second without `install`: the server did not answer it
        await world.wait_entries(DISK.name, NFS.name)
        world.put(NFS)
        await world.wait_entries(NFS.name)
        assert (world.meta().annotations or {})[NODE_ID] == '{"nfs.example.com":"n"}'
        assert (world.meta().labels or {})["example.com/zone"] == "a"
        world.put()
        await world.wait_entries()
        assert NODE_ID not in (world.meta().annotations or {})


async def test_a_registration_that_is_written_is_not_written_again(
    autojump_clock: MockClock,
) -> None:
    world = World()
    async with world.running():
        await wait_all_tasks_blocked()
        await world.csi.install(DISK)
        world.kube.requests.clear()
        world.put(DISK)
        await wait_all_tasks_blocked()
        assert [request.verb for request in world.kube.requests] == ["get"]


async def test_a_collision_or_no_id_refuses_the_driver(autojump_clock: MockClock) -> None:
    world = World()
    async with world.running():
        await wait_all_tasks_blocked()
        await world.csi.install(DISK)
        moved = Facts(NFS.name, "n", topology={"example.com/zone": "b"})
        with pytest.raises(CsiNodeError) as refused:
            await world.csi.install(moved)
        assert str(refused.value) == (
            "error updating Node object with CSI driver node info: error updating node: timed out "
            "waiting for the condition; caused by: detected topology value collision: driver "
            'reported "example.com/zone":"b" but existing label is "example.com/zone":"a"'
        )
        with pytest.raises(CsiNodeError, match="driverNodeID must not be empty"):
            await world.csi.install(Facts(node_id=""))
        assert world.entries() == [DISK.name]
        assert NFS.name not in (world.meta().annotations or {})[NODE_ID]


async def test_a_driver_registers_without_a_server_and_is_written_later(
    autojump_clock: MockClock,
) -> None:
    world = World()
    async with world.running():
        await wait_all_tasks_blocked()
        world.kube.go_down()
        await world.csi.install(DISK)
        world.put(DISK)
        await trio.sleep(600)
        world.kube.come_back()
        await world.wait_entries(DISK.name)


async def test_a_driver_that_is_refused_later_holds_up_no_other(autojump_clock: MockClock) -> None:
    world = World()
    async with world.running():
        await wait_all_tasks_blocked()
        await world.csi.install(DISK)
        world.kube.go_down()
        moved = Facts("a.example.com", "n", topology={"example.com/zone": "b"})
        await world.csi.install(moved)
        world.put(moved, DISK, NFS)
        await trio.sleep(600)
        world.kube.come_back()
        await world.wait_entries(DISK.name, NFS.name)


async def test_a_registration_that_fails_or_is_cut_short_leaves_nothing(
    autojump_clock: MockClock,
) -> None:
    """As upstream unregisters a driver whose installation has failed."""
    world = World()
    async with world.running():
        await wait_all_tasks_blocked()
        busy = KubeError(409, "Conflict", "the object has been modified")
        world.kube.faults.add(ERROR, "update", "csinodes", times=4, error=busy)
        with pytest.raises(CsiNodeError):
            await world.csi.install(NFS)
        assert NODE_ID in (world.meta().annotations or {})
        await trio.sleep(5)
        assert NODE_ID not in (world.meta().annotations or {})
        # The socket goes after the server has written the entry, and before it has said so.
        with trio.move_on_after(1):
            world.kube.faults.add(KubeFaultKind.HANG, "update", "csinodes")
            await world.csi.install(DISK)
        await trio.sleep(5)
        assert world.entries() == []
        assert NODE_ID not in (world.meta().annotations or {})
        await world.csi.install(DISK)
        world.put(DISK)
        await trio.sleep(5)
        assert world.entries() == [DISK.name]


async def test_a_driver_that_comes_back_while_it_is_removed_stays(
    autojump_clock: MockClock,
) -> None:
    world = World()
    async with world.running():
        await wait_all_tasks_blocked()
        await world.csi.install(DISK)
        world.put(DISK)
        await wait_all_tasks_blocked()
        world.kube.faults.add(KubeFaultKind.SLOW, "patch", "nodes", delay=2)
        world.put()
        await trio.sleep(1)
        await world.csi.install(DISK)
        world.put(DISK)
        await trio.sleep(5)
        assert world.entries() == [DISK.name]
        assert (world.meta().annotations or {})[NODE_ID] == '{"disk.example.com":"i-1"}'


async def test_another_id_or_limit_replaces_the_entry(autojump_clock: MockClock) -> None:
    world = World()
    async with world.running():
        await wait_all_tasks_blocked()
        await world.csi.install(DISK)
        for changed in (replace(DISK, max_volumes=3), replace(DISK, node_id="i-2", topology={})):
            await world.csi.install(changed)
            found = world.found()
            assert found is not None
            assert plain(found) == plain(new_csi_node("node-1", "", [changed]))


async def test_entries_of_drivers_that_have_not_come_back_stay(autojump_clock: MockClock) -> None:
    world = World()
    world.kube.add(new_csi_node("node-1", world.meta().uid or "", [DISK, NFS]))
    async with world.running():
        await trio.sleep(700)
        assert world.entries() == [DISK.name, NFS.name]
        await world.csi.install(NFS)
        world.put(NFS)
        await trio.sleep(700)
        assert world.entries() == [DISK.name, NFS.name]


async def test_an_object_that_is_deleted_is_made_again(autojump_clock: MockClock) -> None:
    world = World()
    async with world.running():
        await world.csi.install(DISK)
        world.put(DISK)
        await wait_all_tasks_blocked()
        world.kube.remove(CSINode, "node-1")
        await world.wait_entries(DISK.name)
        assert trio.current_time() <= 331


async def test_the_object_of_an_earlier_node_is_replaced(autojump_clock: MockClock) -> None:
    world = World()
    world.kube.add(new_csi_node("node-1", "an-earlier-one", [NFS]))
    async with world.running():
        await trio.sleep(1)
        assert world.entries() == []
        await world.csi.install(DISK)
        world.put(DISK)
        await wait_all_tasks_blocked()
        world.kube.remove(Node, "node-1")
        world.register()
        await trio.sleep(1)
        found = world.found()
        assert found is not None
        assert found.metadata is not None
        assert [owner.uid for owner in found.metadata.ownerReferences or ()] == [world.meta().uid]
        assert world.entries() == [DISK.name]
        assert (world.meta().labels or {})["example.com/zone"] == "a"


class Asked:
    """What a driver answers when it is asked for its limit again."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.at: list[tuple[str, float]] = []
        self.hangs: set[str] = set()

    async def refresh(self, name: str) -> None:
        self.at.append((name, trio.current_time()))
        if name in self.hangs:
            await trio.sleep_forever()
        driver = self.world.drivers.value[name]
        self.world.put(
            *(d for d in self.world.drivers.value.values() if d.name != name),
            replace(driver, max_volumes=driver.max_volumes + 1),
        )


def csi_driver(name: str, period: int | None) -> CSIDriver:
    spec = CSIDriverSpec(nodeAllocatableUpdatePeriodSeconds=period)
    return CSIDriver(metadata=ObjectMeta(name=name), spec=spec)


@asynccontextmanager
async def asking(world: World, asked: Asked) -> AsyncIterator[None]:
    limits = CsiLimits(world.kube.node("node-1"), ServerFeatures())
    async with world.running(), trio.open_nursery() as nursery:
        await nursery.start(limits.run, world.drivers, asked.refresh)
        await wait_all_tasks_blocked()
        yield
        nursery.cancel_scope.cancel()


async def test_a_driver_is_asked_for_its_limit_as_often_as_its_object_says(
    autojump_clock: MockClock,
) -> None:
    world = World()
    asked = Asked(world)
    world.kube.add(csi_driver(DISK.name, 30))
    world.kube.add(csi_driver("elsewhere.example.com", 10))
    world.kube.add(csi_driver(NFS.name, None))
    async with asking(world, asked):
        assert not any(r.resource == "csidrivers" for r in world.kube.requests)
        await trio.sleep(100)
        began = trio.current_time()
        world.put(DISK, NFS)
        await trio.sleep(95)
        assert [(name, round(at - began)) for name, at in asked.at] == [
            (DISK.name, 30),
            (DISK.name, 60),
            (DISK.name, 90),
        ]
        found = world.found()
        assert found is not None
        assert {e["name"]: e["count"] for e in plain(found)}[DISK.name] == DISK.max_volumes + 3


async def test_a_changed_period_counts_at_once_and_a_hanging_driver_holds_up_no_other(
    autojump_clock: MockClock,
) -> None:
    world = World()
    asked = Asked(world)
    asked.hangs.add(NFS.name)
    for name in (DISK.name, NFS.name):
        world.kube.add(csi_driver(name, 1000))
    async with asking(world, asked):
        world.put(DISK, NFS)
        await trio.sleep(10)
        patch: dict[str, Any] = {"spec": {"nodeAllocatableUpdatePeriodSeconds": 20}}
        for name in (DISK.name, NFS.name):
            world.kube.change(CSIDriver, name, patch)
        await trio.sleep(65)
        assert [name for name, _ in asked.at].count(DISK.name) == 3
        assert [name for name, _ in asked.at].count(NFS.name) == 1
        world.put()
        await trio.sleep(100)
        assert len(asked.at) == 4
