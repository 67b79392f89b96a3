"""Events reach the API server: created once, then counted."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio
from lightkube.models import core_v1
from structlog.testing import capture_logs
from trio.testing import MockClock, wait_all_tasks_blocked

from kubelet_trio.events.api import ApiEvents
from kubelet_trio.kube import ROUTES
from kubelet_trio.model import Event, ObjectRef
from kubelet_trio.testing import FakeKube, KubeFaultKind

NOW = 1_767_225_600.0
WEB = ObjectRef("Pod", "web", "default", "uid-1", "spec.containers{web}")


class World:
    def __init__(self) -> None:
        self.kube = FakeKube()
        self.events = ApiEvents(self.kube.node("node-1"), "node-1")

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            await nursery.start(self.events.run)
            yield
            nursery.cancel_scope.cancel()

    def say(self, message: str = "m", involved: ObjectRef = WEB) -> None:
        self.events.put(Event(involved, "Warning", "BackOff", message, NOW + trio.current_time()))

    def found(self) -> list[core_v1.Event]:
        return self.kube.all(core_v1.Event)

    def counts(self) -> dict[str, int]:
        return {e.message or "": e.count or 0 for e in self.found()}

    async def wait(self, condition: Callable[[], bool]) -> None:
        with trio.fail_after(600):
            await self.kube.wait_until(lambda _kube: condition())
        await wait_all_tasks_blocked()


async def test_an_event_says_what_upstreams_says(autojump_clock: MockClock) -> None:
    world = World()
    async with world.running():
        world.say()
        await world.wait(lambda: bool(world.found()))
    (event,) = world.found()
    assert event.involvedObject.kind == "Pod"
    assert event.involvedObject.uid == "uid-1"
    assert event.involvedObject.fieldPath == "spec.containers{web}"
    assert (event.type, event.reason, event.message, event.count) == ("Warning", "BackOff", "m", 1)
    assert event.source == core_v1.EventSource(component="kubelet", host="node-1")
    assert (event.reportingComponent, event.reportingInstance) == ("kubelet", "node-1")


async def test_repeats_are_counted_in_one_object(autojump_clock: MockClock) -> None:
    world = World()
    async with world.running():
        for _ in range(3):
            world.say()
            await trio.sleep(5)
        await world.wait(lambda: world.counts() == {"m": 3})
        (event,) = world.found()
        assert event.lastTimestamp != event.firstTimestamp


async def test_an_event_that_has_expired_is_made_anew(autojump_clock: MockClock) -> None:
    world = World()
    async with world.running():
        world.say()
        await world.wait(lambda: world.counts() == {"m": 1})
        (event,) = world.found()
        assert event.metadata.name
        world.kube.remove(core_v1.Event, event.metadata.name)
        await trio.sleep(1)
        world.say()
        await world.wait(lambda: world.counts() == {"m": 1})
        world.say()
        await world.wait(lambda: world.counts() == {"m": 2})


async def test_events_of_nodes_are_in_the_default_namespace(autojump_clock: MockClock) -> None:
    world = World()
    async with world.running():
        world.say(involved=ObjectRef("Node", "node-1", uid="node-1"))
        await world.wait(lambda: bool(world.found()))
    (event,) = world.found()
    assert event.metadata.namespace == "default"
    assert event.involvedObject.namespace is None


async def test_a_server_that_is_away_is_waited_for(autojump_clock: MockClock) -> None:
    world = World()
    world.kube.go_down()
    async with world.running():
        world.say()
        await trio.sleep(45)
        world.kube.come_back()
        await world.wait(lambda: world.counts() == {"m": 1})


async def test_an_event_is_not_tried_for_ever_and_the_queue_is_bounded(
    autojump_clock: MockClock,
) -> None:
    world = World()
    world.kube.go_down()
    async with world.running():
        for i in range(1100):
            world.say(str(i), ObjectRef("Pod", f"p{i}", "default", f"uid-{i}"))
        assert world.events.dropped == 100  # the oldest
        await trio.sleep(300)
        world.kube.come_back()
        await world.wait(lambda: "1099" in world.counts())
        assert 101 <= world.events.dropped <= 105


async def test_a_refused_event_holds_up_nothing(autojump_clock: MockClock) -> None:
    world = World()
    world.kube.faults.add(KubeFaultKind.LOST_REPLY, "create", "events")
    async with world.running():
        world.say(involved=ObjectRef("Pod", "web", "nowhere", "uid-2"))
        world.say()
        await world.wait(lambda: "m" in world.counts())


async def test_events_of_a_namespace_that_goes_are_not_warned_of(
    autojump_clock: MockClock,
) -> None:
    world = World()
    world.kube.server.create(ROUTES["Namespace"], {"metadata": {"name": "going"}}, "")
    world.kube.server.delete(ROUTES["Namespace"], "going", "")
    async with world.running():
        with capture_logs() as logs:
            world.say(involved=ObjectRef("Pod", "web", "going", "uid-2"))
            world.say(involved=ObjectRef("Pod", "web", "nowhere", "uid-3"))
            world.say()
            await world.wait(lambda: "m" in world.counts())
    told = [(entry["log_level"], entry["event"]) for entry in logs]
    assert told == [("debug", "event.unwanted"), ("warning", "event.refused")]


async def test_what_was_said_last_still_leaves(autojump_clock: MockClock) -> None:
    world = World()
    async with trio.open_nursery() as nursery:
        await nursery.start(world.events.run)
        world.say()
        world.events.stop()
    assert world.counts() == {"m": 1}
