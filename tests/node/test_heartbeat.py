"""Registration, status and lease against an API server that comes and goes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import trio
from lightkube.models.coordination_v1 import Lease
from lightkube.models.core_v1 import Node, NodeCondition, NodeStatus
from lightkube.models.meta_v1 import ObjectMeta
from trio.testing import MockClock, wait_all_tasks_blocked

from kubelet_trio.kube import KubeError
from kubelet_trio.model import Bell, EventType, ObjectRef
from kubelet_trio.node import NodeIdentity, NodeView, Pressure
from kubelet_trio.node.heartbeat import NodeHeartbeat
from kubelet_trio.node.lease import NAMESPACE, NodeLease
from kubelet_trio.node.object import ATTACH_DETACH, PROVIDED_IP, node_labels
from kubelet_trio.node.registration import NodeObject, Registration
from kubelet_trio.testing import FakeKube, KubeFaultKind, TrioClock
from tests.node.make import IDENTITY, view


class Sink:
    def __init__(self) -> None:
        self.reasons: list[str] = []

    def emit(self, involved: ObjectRef, type_: EventType, reason: str, message: str) -> None:
        self.reasons.append(reason)


class World:
    """A node with an API server; `see` is what it finds of itself."""

    def __init__(self, identity: NodeIdentity = IDENTITY) -> None:
        self.kube = FakeKube()
        self.api = self.kube.node("node-1")
        self.identity = identity
        self.node = NodeObject()
        self.see: NodeView = view()
        self.events = Sink()
        self.clock = TrioClock()
        self.wake = Bell()
        self.start_anew()

    def start_anew(self) -> None:
        """Make the heartbeat of an agent that has just begun."""
        self.heartbeat = NodeHeartbeat(
            self.api, self.identity, self.node, self.observe, self.events, wake=self.wake
        )

    async def observe(self) -> NodeView:
        await trio.lowlevel.checkpoint()
        return replace(self.see, now=self.clock.time())

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        registration = Registration(self.api, self.identity, self.node, self.observe, self.events)
        lease = NodeLease(self.api, self.node, self.clock)
        parts: tuple[Callable[..., Awaitable[Any]], ...] = (
            registration.run,
            self.heartbeat.run,
            lease.run,
        )
        async with trio.open_nursery() as nursery:
            for part in parts:
                await nursery.start(part)
            yield
            nursery.cancel_scope.cancel()

    def found(self) -> Node | None:
        return self.kube.find(Node, "node-1")

    def labels(self) -> dict[str, str]:
        found = self.found()
        return (found.metadata.labels if found and found.metadata else None) or {}

    def annotations(self) -> dict[str, str]:
        found = self.found()
        return (found.metadata.annotations if found and found.metadata else None) or {}

    def change_annotation(self, name: str, value: str) -> None:
        patch = {"metadata": {"annotations": {name: value}}}
        self.node.put(self.kube.change(Node, "node-1", patch))

    def condition(self, type_: str = "Ready") -> NodeCondition | None:
        found = self.found()
        conditions = (found.status.conditions if found and found.status else None) or ()
        return next((c for c in conditions if c.type == type_), None)

    def is_ready(self) -> bool:
        ready = self.condition()
        return ready is not None and ready.status == "True"

    def lease(self) -> Lease | None:
        return self.kube.find(Lease, "node-1", NAMESPACE)

    async def wait(self, condition: Callable[[], bool]) -> None:
        with trio.fail_after(600):
            await self.kube.wait_until(lambda _kube: condition())
        await wait_all_tasks_blocked()  # the answer has arrived, too

    def sent(self, verb: str, resource: str) -> int:
        return sum(r.verb == verb and r.resource == resource for r in self.kube.requests)


async def test_a_node_registers_and_is_ready_within_a_second(autojump_clock: MockClock) -> None:
    world = World(replace(IDENTITY, labels={"disk": "ssd"}))
    async with world.running():
        await world.wait(world.is_ready)
        assert trio.current_time() < 1
        node = world.found()
        assert node is not None
        assert node.metadata is not None
        assert (node.metadata.labels or {})["disk"] == "ssd"
        assert node.status is not None
        assert node.status.capacity == view().resources.capacity
        await world.wait(lambda: world.lease() is not None)


_FIRST_EVENTS = ["NodeHasSufficientMemory", "NodeHasNoDiskPressure", "NodeHasSufficientPID"]


async def test_an_agent_tells_the_pressures_that_it_starts_with(autojump_clock: MockClock) -> None:
    world = World()
    world.see = view(not_ready=("container runtime is down",))
    world.kube.go_down()
    async with world.running():
        await trio.sleep(60)  # several attempts
        world.kube.come_back()
        await world.wait(lambda: world.found() is not None)
        world.see = view()
        world.wake.ring()
        await world.wait(world.is_ready)
    assert world.events.reasons == [*_FIRST_EVENTS, "NodeReady"]
    # Another agent on the same node, of which nothing has changed.
    world.events.reasons.clear()
    world.node = NodeObject()
    async with world.running():
        await trio.sleep(1)
    assert world.events.reasons == _FIRST_EVENTS


async def test_a_server_that_is_away_at_first_is_waited_for(autojump_clock: MockClock) -> None:
    world = World()
    world.kube.go_down()
    async with world.running():
        await trio.sleep(60)
        assert world.found() is None
        world.kube.come_back()
        await world.wait(world.is_ready)
        assert trio.current_time() < 60 + 8


async def test_a_server_that_hangs_is_like_one_that_is_away(autojump_clock: MockClock) -> None:
    world = World()
    async with world.running():
        await world.wait(world.is_ready)
        world.kube.hang()
        world.see = view(pressure=Pressure(memory=True))
        await trio.sleep(300)
        world.kube.come_back()

        def told() -> bool:
            pressure = world.condition("MemoryPressure")
            return pressure is not None and pressure.status == "True"

        await world.wait(told)
        assert trio.current_time() < 300 + 40
        before = world.lease()
        await trio.sleep(25)
        assert world.lease() != before


async def test_an_object_that_exists_is_put_right(autojump_clock: MockClock) -> None:
    world = World()
    labels = {**node_labels(IDENTITY), "kubernetes.io/arch": "s390x", "team": "blue"}
    world.kube.add(
        Node(
            metadata=ObjectMeta(name="node-1", labels=labels),
            status=NodeStatus(
                capacity={"cpu": "64", "example.com/dongle": "4"},
                conditions=[
                    NodeCondition(type="NetworkUnavailable", status="False", reason="RouteCreated"),
                    NodeCondition(type="Ready", status="Unknown", reason="NodeStatusUnknown"),
                ],
            ),
        )
    )
    async with world.running():
        await world.wait(world.is_ready)
    node = world.found()
    assert node is not None
    assert node.metadata is not None
    assert world.labels()["team"] == "blue"
    assert world.labels()["kubernetes.io/arch"] == "amd64"
    assert node.metadata.annotations == {ATTACH_DETACH: "true"}
    assert node.status is not None
    assert (node.status.capacity or {})["cpu"] == "2"
    assert (node.status.capacity or {})["example.com/dongle"] == "0"
    network = world.condition("NetworkUnavailable")
    assert network is not None
    assert network.reason == "RouteCreated"
    assert world.events.reasons == [*_FIRST_EVENTS, *_FIRST_EVENTS, "NodeReady"]


async def test_a_node_that_was_ready_is_given_a_moment_to_be_ready_again(
    autojump_clock: MockClock,
) -> None:
    world = World()
    async with world.running():
        await world.wait(world.is_ready)
    world.node, world.see = NodeObject(), view(not_ready=("CSINode is not yet initialized",))
    world.start_anew()
    async with world.running():
        await trio.sleep(3)
        assert world.is_ready()
        world.see = view()
        world.wake.ring()
        await trio.sleep(20)
    assert "NodeNotReady" not in world.events.reasons
    world.node, world.see = NodeObject(), view(not_ready=("container runtime is down",))
    world.start_anew()
    began = trio.current_time()
    async with world.running():
        await world.wait(lambda: not world.is_ready())
        assert 9 < trio.current_time() - began < 12


async def test_nothing_is_told_while_nothing_changes(autojump_clock: MockClock) -> None:
    world = World()
    async with world.running():
        await world.wait(world.is_ready)
        await trio.sleep(11)
        world.kube.requests.clear()
        await trio.sleep(100)
        assert world.sent("patch", "nodes/status") == 0
        assert world.sent("get", "nodes") == 0
        assert 9 <= world.sent("update", "leases") <= 11
        heartbeat = world.condition()
        await trio.sleep(450)  # 5 min, half as much again at the most
        assert world.sent("patch", "nodes/status") >= 1
        after = world.condition()
        assert heartbeat is not None
        assert after is not None
        assert after.lastHeartbeatTime != heartbeat.lastHeartbeatTime
        assert after.lastTransitionTime == heartbeat.lastTransitionTime


async def test_a_change_is_told_when_it_is_looked_for_or_at_once_if_woken(
    autojump_clock: MockClock,
) -> None:
    world = World()
    async with world.running():
        await world.wait(world.is_ready)
        world.see = view(not_ready=("container runtime is down",))
        await world.wait(lambda: not world.is_ready())
        assert trio.current_time() < 11
        at = trio.current_time()
        world.see = view()
        world.wake.ring()
        await world.wait(world.is_ready)
        assert trio.current_time() - at < 0.1
    assert world.events.reasons[-2:] == ["NodeNotReady", "NodeReady"]


async def test_what_others_wrote_over_is_put_right(autojump_clock: MockClock) -> None:
    world = World()
    async with world.running():
        await world.wait(world.is_ready)
        patch = {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}
        world.node.put(world.kube.change(Node, "node-1", patch, subresource="status"))
        assert not world.is_ready()
        await world.wait(world.is_ready)
        assert trio.current_time() < 21


async def test_labels_of_system_and_architecture_are_put_right_while_the_node_runs(
    autojump_clock: MockClock,
) -> None:
    world = World(replace(IDENTITY, labels={"kubernetes.io/arch": "riscv64"}))
    wrong = {"kubernetes.io/os": "plan9", "kubernetes.io/arch": None, "team": "blue"}
    async with world.running():
        await world.wait(world.is_ready)
        world.node.put(world.kube.change(Node, "node-1", {"metadata": {"labels": wrong}}))
        await world.wait(lambda: world.labels().get("kubernetes.io/os") == "linux")
        assert world.labels()["kubernetes.io/arch"] == "amd64"
        assert world.labels()["team"] == "blue"
        assert trio.current_time() < 21
        before = world.sent("patch", "nodes/status")
        await trio.sleep(60)
        assert world.sent("patch", "nodes/status") == before


@pytest.mark.parametrize(
    ("identity", "found", "wanted"),
    [
        (replace(IDENTITY, external_cloud=True, node_ips=("192.0.2.1",)), None, "192.0.2.1"),
        (replace(IDENTITY, external_cloud=True, node_ips=("192.0.2.1",)), "10.0.0.1", "192.0.2.1"),
        (IDENTITY, "192.0.2.1", None),
    ],
    ids=["missing", "another", "of an earlier configuration"],
)
async def test_the_provided_ip_is_put_right_on_a_node_that_somebody_made(
    autojump_clock: MockClock, identity: NodeIdentity, found: str | None, wanted: str | None
) -> None:
    """As each update of the status does (NodeAddress in nodestatus/setters.go)."""
    world = World(replace(identity, register=False))
    made = {PROVIDED_IP: found, "team": "blue"} if found else {"team": "blue"}
    world.kube.add(Node(metadata=ObjectMeta(name="node-1", annotations=made)))
    async with world.running():
        await world.wait(world.is_ready)
        assert world.annotations().get(PROVIDED_IP) == wanted
        assert world.annotations()["team"] == "blue"
        world.see = replace(world.see, address_problem="nodeIP can't be loopback address")
        world.change_annotation(PROVIDED_IP, "10.9.9.9")
        await trio.sleep(600)
        assert world.annotations()[PROVIDED_IP] == "10.9.9.9"


async def test_a_node_that_may_not_register_waits_until_somebody_makes_it(
    autojump_clock: MockClock,
) -> None:
    world = World(replace(IDENTITY, register=False))
    async with world.running():
        await trio.sleep(60)
        assert world.found() is None
        world.kube.add(Node(metadata=ObjectMeta(name="node-1")))
        await world.wait(world.is_ready)
        await world.wait(lambda: world.lease() is not None)


async def test_the_lease_belongs_to_the_node_and_is_renewed(autojump_clock: MockClock) -> None:
    world = World()
    async with world.running():
        await world.wait(lambda: world.lease() is not None)
        first = world.lease()
        assert first is not None
        assert first.spec is not None
        assert (first.spec.holderIdentity, first.spec.leaseDurationSeconds) == ("node-1", 40)
        assert first.metadata is not None
        assert first.metadata.ownerReferences
        owner = first.metadata.ownerReferences[0]
        node = world.found()
        assert node is not None
        assert node.metadata is not None
        assert (owner.kind, owner.name, owner.uid) == ("Node", "node-1", node.metadata.uid)
        await world.wait(lambda: world.lease() != first)
        assert trio.current_time() < 11


async def test_a_lease_that_is_lost_or_another_hands_is_taken_again(
    autojump_clock: MockClock,
) -> None:
    world = World()
    async with world.running():
        await world.wait(lambda: world.lease() is not None)
        world.kube.remove(Lease, "node-1", NAMESPACE)
        await world.wait(lambda: world.lease() is not None)
        world.kube.change(Lease, "node-1", {"spec": {"holderIdentity": "x"}}, NAMESPACE)

        def is_ours() -> bool:
            lease = world.lease()
            return (
                lease is not None
                and lease.spec is not None
                and lease.spec.holderIdentity == ("node-1")
            )

        await world.wait(is_ours)
        assert trio.current_time() < 30


FORBIDDEN = KubeError(403, "Forbidden", "nodes is forbidden")


async def test_a_node_that_may_not_be_created_is_taken_as_it_is(autojump_clock: MockClock) -> None:
    world = World(replace(IDENTITY, labels={"beta.kubernetes.io/arch": "riscv"}))
    world.kube.add(Node(metadata=ObjectMeta(name="node-1")))
    world.kube.faults.add(KubeFaultKind.ERROR, "create", "nodes", times=None, error=FORBIDDEN)
    async with world.running():
        await world.wait(world.is_ready)
        node = world.found()
        assert node is not None
        assert node.metadata is not None
        assert world.labels()["beta.kubernetes.io/arch"] == "riscv"
        assert (node.metadata.annotations or {})[ATTACH_DETACH] == "true"


async def test_with_the_gate_only_an_object_that_exists_is_asked_for(
    autojump_clock: MockClock,
) -> None:
    world = World(replace(IDENTITY, get_on_exists_only=True))
    world.kube.add(Node(metadata=ObjectMeta(name="node-1")))
    world.kube.faults.add(KubeFaultKind.ERROR, "create", "nodes", times=None, error=FORBIDDEN)
    async with world.running():
        await trio.sleep(60)
        assert not world.is_ready()


async def test_a_cordon_is_told_once(autojump_clock: MockClock) -> None:
    world = World()
    async with world.running():
        await world.wait(world.is_ready)
        for unschedulable in (True, False):
            world.kube.change(Node, "node-1", {"spec": {"unschedulable": unschedulable}})
            found = world.found()
            assert found is not None
            world.node.put(found)
            await trio.sleep(30)
    told = [reason for reason in world.events.reasons if "Schedulable" in reason]
    assert told == ["NodeNotSchedulable", "NodeSchedulable"]
