"""Pods that end at any moment of their start, and probes that end with them: nothing is cut."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from kubelet_trio.cri import ExecResult
from kubelet_trio.model import pod_uid
from kubelet_trio.supervision import TreeNode
from kubelet_trio.testing import FakeExec, FaultKind
from tests.agent.node import Node, make_pod


@pytest.fixture
def node(tmp_path: Path) -> Node:
    node = Node(tmp_path)
    node.runtime.latency = {"": 0.02, "RunPodSandbox": 0.3, "StartContainer": 0.15}
    return node


def names(tree: TreeNode) -> list[str]:
    return [tree.name, *(name for child in tree.children for name in names(child))]


@pytest.mark.parametrize("after", [n * 0.043 for n in range(1, 25)])
async def test_a_pod_deleted_while_it_starts_leaves_nothing_half_done(
    node: Node, after: float, autojump_clock: MockClock
) -> None:
    two = "- {name: web, image: web}\n- {name: more, image: web}"
    async with node.running(make_pod(containers=two)):
        await trio.sleep(after)
        node.feed.put()
        await trio.sleep(60)
        assert not node.runtime.sandboxes
        assert not node.runtime.cuts
        assert not node.runtime.violations
        assert not node.leftovers()


@pytest.mark.parametrize("after", [0.1, 0.35, 0.5, 0.55, 0.62, 0.7])
async def test_an_agent_that_is_cancelled_leaves_nothing_half_done(
    node: Node, after: float, autojump_clock: MockClock
) -> None:
    async with node.running(make_pod()):
        await trio.sleep(after)
    assert not node.runtime.cuts
    assert all(sandbox.ready for sandbox in node.runtime.sandboxes.values())


async def test_a_hanging_start_holds_the_agent_up_for_some_seconds_only(
    node: Node, autojump_clock: MockClock
) -> None:
    node.runtime.faults.add(FaultKind.HANG, "StartContainer", times=None)
    async with node.running(make_pod()) as agent:
        await trio.sleep(2)
        (call,) = [name for name in names(agent.tree()) if "@container" in name]
        assert call.startswith("start_container@")
        began = trio.current_time()
    assert trio.current_time() - began < 7
    assert not node.runtime.violations


async def test_a_shorter_grace_gets_through_while_a_stop_is_in_flight(
    node: Node, autojump_clock: MockClock
) -> None:
    pod = make_pod(image="stubborn", spec=["terminationGracePeriodSeconds: 3600"])
    async with node.running(pod) as agent:
        await trio.sleep(5)
        node.feed.put()
        await trio.sleep(10)
        assert node.runtime.alive()
        agent.shorten_grace(pod_uid(pod), 1)
        await trio.sleep(5)
        assert not node.runtime.alive()
        await trio.sleep(30)
        assert not node.runtime.sandboxes
        assert not node.runtime.cuts


async def test_the_commands_of_probes_are_not_cut_when_their_pod_ends(
    node: Node, autojump_clock: MockClock
) -> None:
    node.runtime.on_exec = lambda _c, _cmd: FakeExec(0.7, ExecResult(b"", b"", 0))
    probes = ", ".join(
        f"{kind}Probe: {{exec: {{command: [{kind}]}}, periodSeconds: 1}}"
        for kind in ("liveness", "readiness")
    )
    pod = make_pod(containers=f"- {{name: web, image: slow-stop-4, {probes}}}")
    async with node.running(pod):
        await trio.sleep(10.5)
        ending = trio.current_time()
        node.feed.put()
        await trio.sleep(40)
        assert not node.runtime.sandboxes
        assert not node.runtime.cuts
        liveness = [
            call.time for call in node.runtime.calls_of("ExecSync") if call.time > ending + 0.1
        ]
        assert liveness  # readiness is asked until it has stopped


async def test_a_hook_is_left_behind_and_its_command_ends_by_itself(
    node: Node, autojump_clock: MockClock
) -> None:
    node.runtime.on_exec = lambda _c, _cmd: FakeExec(takes=20.0)
    hook = "lifecycle: {postStart: {exec: {command: [slow]}}}"
    pod = make_pod(containers=f"- {{name: web, image: web, {hook}}}")
    async with node.running(pod) as agent:
        await trio.sleep(5)
        agent.shorten_grace(pod_uid(pod), 0)  # ends it, as an eviction does
        await trio.sleep(3)
        assert not node.runtime.alive()
        assert not node.runtime.cuts
