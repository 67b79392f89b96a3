"""Dead remains that the runtime does not remove hold up nobody, and go once they can."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from kubelet_trio.agent import Agent
from kubelet_trio.cri import RuntimeCallError
from kubelet_trio.model import pod_uid
from kubelet_trio.supervision import TreeNode
from kubelet_trio.testing import Fault, FaultKind
from tests.agent.node import Node, make_pod, ready
from tests.agent.test_taken_over import leave_remains

OLD, NEW = make_pod(image="web:1"), make_pod(image="web:2")


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def stuck(node: Node, kind: FaultKind = FaultKind.ERROR, uid: str = "") -> Fault:
    """Let no dead sandbox be removed, as containerd 1.6 may."""
    error = RuntimeCallError("RemovePodSandbox", "failed to remove container: not found")
    return node.runtime.faults.add(kind, "RemovePodSandbox", uid, times=None, error=error)


def child(agent: Agent, *path: str) -> TreeNode:
    found = agent.tree()
    for name in path:
        found = next(c for c in found.children if c.name == name)
    return found


def remains(agent: Agent) -> list[str]:
    return [each.name for each in child(agent, "gc", "remains").children]


async def test_the_next_pod_of_the_name_starts(node: Node, autojump_clock: MockClock) -> None:
    async with node.running(OLD) as agent:
        await trio.sleep(5)
        fault = stuck(node)
        with capture_logs() as logs:
            node.feed.put(NEW)
            await trio.sleep(10)
            assert ready(node.status(NEW))
            await trio.sleep(600)
        assert agent.pods.value.keys() == {pod_uid(NEW)}
        # Seen in status and tree, and said once.
        (name,) = remains(agent)
        assert name == f"default/web-node@{pod_uid(OLD)}"
        assert "not found" in agent.status().remains[name]
        assert len([e for e in logs if e["event"] == "pod.remains"]) == 1
        node.runtime.faults.lift(fault)
        await trio.sleep(120)
        assert not agent.status().remains
        assert remains(agent) == []
        assert {s.uid for s in node.runtime.sandboxes.values()} == {pod_uid(NEW)}
    assert node.runtime.violations == []


async def test_a_removal_that_hangs_holds_up_nobody(node: Node, autojump_clock: MockClock) -> None:
    async with node.running(OLD):
        await trio.sleep(5)
        stuck(node, FaultKind.HANG)
        node.feed.put(NEW)
        await trio.sleep(30)
        assert ready(node.status(NEW))


async def test_the_same_pod_comes_back(node: Node, autojump_clock: MockClock) -> None:
    async with node.running(OLD) as agent:
        await trio.sleep(5)
        stuck(node)
        node.feed.put()
        with trio.fail_after(60):
            await agent.wait_pod_gone(OLD)
        assert remains(agent)
        node.feed.put(OLD)
        await trio.sleep(30)
        assert ready(node.status(OLD))
        assert remains(agent) == []
        assert not agent.status().remains
    assert node.runtime.violations == []


async def test_an_agent_that_ends_its_pods_does_not_wait_for_the_dead(
    node: Node, autojump_clock: MockClock
) -> None:
    async with node.running(OLD) as agent:
        await trio.sleep(5)
        stuck(node)
        with trio.fail_after(60):
            await agent.remove_pods()
        assert not node.runtime.alive()


async def test_remains_of_strangers_hold_up_nobody_at_a_start(
    node: Node, autojump_clock: MockClock
) -> None:
    await leave_remains(node.runtime, "web-node", "before")
    stuck(node, uid="before")
    async with node.running(NEW) as agent:
        await trio.sleep(10)
        assert ready(node.status(NEW))
        await trio.sleep(300)
        assert remains(agent) == ["default/web-node@before"]
    async with node.running(NEW) as agent:
        await trio.sleep(60)
        assert node.container(NEW).restartCount == 0
        assert remains(agent) == ["default/web-node@before"]
    assert node.runtime.violations == []


async def test_what_runs_is_waited_for(node: Node, autojump_clock: MockClock) -> None:
    old = make_pod(image="stubborn", spec=["terminationGracePeriodSeconds: 40"])
    async with node.running(old):
        await trio.sleep(5)
        stuck(node)
        node.feed.put(NEW)
        await trio.sleep(30)
        assert not ready(node.status(NEW))
        assert {c.uid for c in node.runtime.alive()} == {pod_uid(old)}
        await trio.sleep(30)
        assert ready(node.status(NEW))
    assert node.runtime.violations == []
