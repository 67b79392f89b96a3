"""The node goes down in order, on a whole agent in virtual time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from kubelet_trio.model import pod_uid
from kubelet_trio.shutdown import ShutdownPeriod
from tests.agent.node import Node, from_api, make_pod, ready
from tests.shutdown.fake import FakeLogind

PERIODS = (ShutdownPeriod(0, 20), ShutdownPeriod(2_000_000_000, 10))


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.fixture
def logind(node: Node) -> FakeLogind:
    logind = FakeLogind()
    node.logind = logind
    return logind


async def test_pods_end_by_priority_and_the_lock_goes_last(
    node: Node, logind: FakeLogind, autojump_clock: MockClock
) -> None:
    plain = from_api(make_pod("plain", "slow-stop-3"))
    critical = make_pod("critical", "run", spec=["priority: 2000001000"])
    async with node.running(plain, critical, shutdown=PERIODS) as agent:
        await trio.sleep(10)
        assert logind.is_held_up
        assert agent.not_ready() is None
        logind.announce(True)
        await trio.sleep(1)
        assert logind.is_held_up
        assert agent.not_ready() == "node is shutting down"
        assert len(node.runtime.alive(pod_uid(critical))) == 1
        await trio.sleep(20)
        assert not logind.is_held_up
        for pod in (plain, critical):
            status = node.status(pod)
            assert (status.phase, status.reason) == ("Failed", "Terminated")
            assert status.message == ("Pod was terminated in response to imminent node shutdown.")
        assert not node.runtime.alive()
        first, second = node.runtime.calls_of("StopContainer")
        assert second.time - first.time >= 3
        disruption = [c.type for c in node.status(plain).conditions or ()]
        assert "DisruptionTarget" in disruption
        assert "Shutdown" in node.reasons()
        state = json.loads((node.base / "root/graceful_node_shutdown_state").read_text())
        assert state["startTime"] < state["endTime"]
    assert not node.runtime.violations


async def test_no_pod_comes_while_the_node_goes_down(
    node: Node, logind: FakeLogind, autojump_clock: MockClock
) -> None:
    stuck = from_api(make_pod("stuck", "stubborn", spec=["terminationGracePeriodSeconds: 600"]))
    late = make_pod("late")
    async with node.running(stuck, shutdown=PERIODS):
        await trio.sleep(10)
        logind.announce(True)
        await trio.sleep(1)
        node.feed.put(stuck, late)
        await trio.sleep(5)
        assert logind.is_held_up
        status = node.status(late)
        assert (status.phase, status.reason) == ("Failed", "NodeShutdown")
        assert "Pod was rejected as the node is shutting down." in (status.message or "")
        assert node.runtime.instances("late-node") == []


async def test_a_group_has_its_time_and_no_more(
    node: Node, logind: FakeLogind, autojump_clock: MockClock
) -> None:
    stuck = from_api(make_pod("stuck", "stubborn", spec=["terminationGracePeriodSeconds: 600"]))
    async with node.running(stuck, shutdown=PERIODS):
        await trio.sleep(10)
        began = trio.current_time()
        logind.announce(True)
        with trio.fail_after(60):
            while logind.is_held_up:  # noqa: ASYNC110  # nobody tells of it
                await trio.sleep(0.1)
        assert trio.current_time() - began <= 30
        (stop,) = node.runtime.calls_of("StopContainer")
        assert stop.time - began < 1


async def test_a_shutdown_that_is_called_off_takes_a_new_lock(
    node: Node, logind: FakeLogind, autojump_clock: MockClock
) -> None:
    async with node.running(shutdown=PERIODS) as agent:
        await trio.sleep(10)
        logind.announce(True)
        await trio.sleep(5)
        assert not logind.is_held_up
        logind.announce(False)
        await trio.sleep(5)
        assert logind.is_held_up
        assert agent.not_ready() is None
        pod = make_pod()
        node.feed.put(pod)
        await trio.sleep(30)
        assert ready(node.status(pod))


async def test_a_logind_that_waits_too_short_is_told_to_wait_longer(
    node: Node, logind: FakeLogind, autojump_clock: MockClock
) -> None:
    logind.delay = 5.0
    async with node.running(shutdown=PERIODS):
        await trio.sleep(10)
        assert logind.told == [30]
        assert logind.is_held_up


async def test_without_logind_the_node_runs_and_asks_again(
    node: Node, logind: FakeLogind, autojump_clock: MockClock
) -> None:
    logind.is_away = True
    pod = make_pod()
    async with node.running(pod, shutdown=PERIODS):
        await trio.sleep(30)
        assert ready(node.status(pod))
        assert not logind.is_held_up
        logind.is_away = False
        await trio.sleep(3)
        assert logind.is_held_up
        logind.go_away()
        await trio.sleep(5)
        logind.is_away = False
        await trio.sleep(5)
        assert [lock.is_held for lock in logind.locks] == [False, True]


async def test_a_static_pod_comes_back_with_the_node(
    node: Node, logind: FakeLogind, autojump_clock: MockClock
) -> None:
    pod = make_pod()
    async with node.running(pod, shutdown=PERIODS):
        await trio.sleep(10)
        logind.announce(True)
        await trio.sleep(30)
        assert node.status(pod).reason == "Terminated"
    async with node.running(pod, shutdown=PERIODS):
        await trio.sleep(30)
        assert ready(node.status(pod))
        assert node.status(pod).reason is None


async def test_the_lock_is_given_back_when_the_agent_ends(
    node: Node, logind: FakeLogind, autojump_clock: MockClock
) -> None:
    async with node.running(shutdown=PERIODS):
        await trio.sleep(10)
    assert not logind.is_held_up


async def test_an_agent_that_starts_into_a_shutdown_starts_nothing(
    node: Node, logind: FakeLogind, autojump_clock: MockClock
) -> None:
    old, late = make_pod("old"), make_pod("late")
    async with node.running(old, shutdown=PERIODS):
        await trio.sleep(10)
        assert ready(node.status(old))
    logind.is_preparing = True
    async with node.running(old, shutdown=PERIODS) as agent:
        await trio.sleep(10)
        assert agent.not_ready() == "node is shutting down"
        assert not logind.is_held_up
        node.feed.put(old, late)
        await trio.sleep(20)
        assert node.status(old).reason == "Terminated"
        assert node.status(late).reason == "NodeShutdown"
        assert not node.runtime.alive()


async def test_a_shutdown_that_is_called_off_while_pods_end_is_heard_at_once(
    node: Node, logind: FakeLogind, autojump_clock: MockClock
) -> None:
    stuck = from_api(make_pod("stuck", "stubborn", spec=["terminationGracePeriodSeconds: 600"]))
    critical = make_pod("critical", "run", spec=["priority: 2000001000"])
    late = make_pod("late")
    async with node.running(stuck, critical, shutdown=PERIODS) as agent:
        await trio.sleep(10)
        logind.announce(True)
        await trio.sleep(2)
        logind.announce(True)  # said twice
        logind.announce(False)
        await trio.sleep(1)
        assert agent.not_ready() is None
        assert logind.is_held_up
        assert sum(lock.is_held for lock in logind.locks) == 1
        node.feed.put(stuck, critical, late)
        await trio.sleep(2)
        assert ready(node.status(late))
        await trio.sleep(60)
        # What was told to end has ended; what was not goes on.
        assert node.status(stuck).reason == "Terminated"
        assert ready(node.status(critical))
        assert node.container(critical).restartCount == 0
        state = json.loads((node.base / "root/graceful_node_shutdown_state").read_text())
        assert state["endTime"] is not None
        logind.announce(True)
        await trio.sleep(30)
        assert node.status(critical).reason == "Terminated"


async def test_pods_end_though_logind_goes_away_meanwhile(
    node: Node, logind: FakeLogind, autojump_clock: MockClock
) -> None:
    plain = from_api(make_pod("plain", "slow-stop-3"))
    critical = make_pod("critical", "run", spec=["priority: 2000001000"])
    async with node.running(plain, critical, shutdown=PERIODS):
        await trio.sleep(10)
        logind.announce(True)
        await trio.sleep(1)
        logind.go_away()
        await trio.sleep(20)
        assert not node.runtime.alive()
        assert node.status(critical).reason == "Terminated"
