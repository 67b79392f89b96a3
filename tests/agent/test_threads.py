"""Blocking work of one purpose that hangs for good, on a whole agent with real threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ParamSpec, TypeVar

import pytest
import trio
from lightkube.models.coordination_v1 import Lease
from trio.testing import MockClock

from kubelet_trio.model import Offload, Purpose, end_threads, pod_uid, thread_offload
from kubelet_trio.pressure import EvictionPolicy, parse_thresholds
from tests.agent.node import Node, make_pod, ready
from tests.agent.test_cluster import World
from tests.agent.test_eviction import MI, Machine
from tests.agent.test_probes import Answers, probe, probed

P = ParamSpec("P")
T = TypeVar("T")

# A pod starts by these: its record, its files, its volumes.
_OF_STARTS = {Purpose.RECORDS, Purpose.PODS, Purpose.VOLUMES}
# What a pod's status says is on disk with its record before its worker goes on.
_OF_STATUSES = {Purpose.RECORDS}


class Hanging:
    """Threads; from `begin` on those of one purpose never return."""

    def __init__(self, purpose: Purpose) -> None:
        self._purpose = purpose
        self._has_begun = False
        self.go = threading.Event()

    def begin(self) -> None:
        self._has_begun = True

    def of(self, purpose: Purpose) -> Offload:
        threads = thread_offload.of(purpose)

        async def offload(fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
            if purpose is self._purpose and self._has_begun:
                await threads(self.go.wait, 60)
            return await threads(fn, *args, **kwargs)

        return offload

    async def __call__(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.of(Purpose.OTHER)(fn, *args, **kwargs)


@pytest.fixture
def clock() -> MockClock:
    """Time that passes faster: the autojump clock knows of no threads."""
    return MockClock(rate=20)


@pytest.fixture(params=Purpose)
def hanging(request: pytest.FixtureRequest) -> Iterator[Hanging]:
    threads = Hanging(request.param)
    yield threads
    threads.go.set()


async def test_every_other_room_goes_on_and_the_agent_ends(
    hanging: Hanging, clock: MockClock, tmp_path: Path
) -> None:
    node, machine = Node(tmp_path), Machine()
    node.offload, node.signals = hanging, machine
    node.runtime.on_exec = answers = Answers()
    first = probed(probe("readiness", "ready", periodSeconds=1), name="first")
    second = make_pod("second")
    eviction = EvictionPolicy(parse_thresholds({"memory.available": "100Mi"}))
    async with node.running(first, eviction=eviction) as agent:
        await agent.pods.wait_value(
            lambda pods: pod_uid(first) in pods and ready(node.status(first))
        )
        hanging.begin()
        node.feed.put(first, second)
        if hanging._purpose not in _OF_STARTS:
            with trio.fail_after(60):
                await agent.pods.wait_value(
                    lambda pods: pod_uid(second) in pods and ready(node.status(second))
                )
        # Containers are probed on, and the status says what comes of it.
        answers.failing.add("ready")
        asked = len(answers.asked)
        await eventually(lambda: len(answers.asked) >= asked + 3)
        if hanging._purpose not in _OF_STATUSES:
            await eventually(lambda: not ready(node.status(first)))
        if hanging._purpose is not Purpose.SIGNALS:
            machine.memory = 10 * MI
            with trio.fail_after(60):
                await agent.pressure.wait_value(lambda pressure: pressure.memory)
        agent.stop()
        await trio.sleep(30)
        end_threads()
        freed_at = trio.current_time()
    assert trio.current_time() < freed_at + 30


async def test_the_node_is_told_to_live_on(
    hanging: Hanging, clock: MockClock, tmp_path: Path
) -> None:
    world = World(tmp_path)
    world.host.offload = hanging
    world.bind()
    async with world.running():
        await eventually(world.is_ready)
        hanging.begin()
        before = renewed(world)
        await eventually(lambda: renewed(world) != before)
        end_threads()


async def eventually(is_so: Callable[[], bool]) -> None:
    """Wait until something is so, for a minute of virtual time."""
    for _ in range(60):
        if is_so():
            return
        await trio.sleep(1)
    raise AssertionError("not within a minute")


def renewed(world: World) -> object:
    lease = world.kube.find(Lease, "node", "kube-node-lease")
    return lease.spec.renewTime if lease is not None and lease.spec is not None else None
