"""A pod that is being ended says so from the first moment, as with an API server."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from lightkube.models.core_v1 import Pod
from lightkube.models.meta_v1 import ObjectMeta
from trio.testing import MockClock

from kubelet_trio.agent import Agent
from kubelet_trio.model import pod_uid
from kubelet_trio.supervision import render_tree
from tests.agent.node import Node, make_pod, ready

GRACE = 20


def stubborn() -> Pod:
    return make_pod("a", "stubborn", spec=[f"terminationGracePeriodSeconds: {GRACE}"])


def shown(agent: Agent, pod: Pod) -> ObjectMeta:
    meta: ObjectMeta | None = agent.pods.value[pod_uid(pod)].metadata
    assert meta is not None
    return meta


async def test_a_pod_whose_manifest_went_is_terminating_for_its_whole_grace(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    node, pod = Node(tmp_path), stubborn()
    async with node.running(pod) as agent:
        await trio.sleep(5)
        assert ready(node.status(pod))
        node.feed.put()
        await trio.sleep(1)
        until = shown(agent, pod).deletionTimestamp
        assert until is not None
        assert until.timestamp() - agent.clock.time() == pytest.approx(GRACE - 1, abs=0.2)
        assert shown(agent, pod).deletionGracePeriodSeconds == GRACE
        assert node.status(pod).phase == "Running"  # as it is: kubectl says Terminating
        assert "ending, 19 s left" in render_tree(agent.tree())
        agent.shorten_grace(pod_uid(pod), 5)
        await trio.sleep(0.5)
        assert shown(agent, pod).deletionGracePeriodSeconds == 6  # 5 s from now, after 1 s
        await trio.sleep(30)
        assert pod_uid(pod) not in agent.pods.value


async def test_pods_removed_with_the_agent_are_terminating(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    node, pod = Node(tmp_path), stubborn()
    async with node.running(pod) as agent, trio.open_nursery() as nursery:
        await trio.sleep(5)
        nursery.start_soon(agent.remove_pods)
        await trio.sleep(1)
        assert shown(agent, pod).deletionGracePeriodSeconds == GRACE


async def test_a_restarted_agent_shows_the_end_it_goes_on_with(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    node, pod = Node(tmp_path), stubborn()
    async with node.running(pod):
        await trio.sleep(5)
        node.feed.put()
        await trio.sleep(1)
    async with node.running() as agent:
        await trio.sleep(1)
        assert shown(agent, pod).deletionTimestamp is not None


async def test_what_was_decided_is_carried_out_before_any_source_has_spoken(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    node, goes, stays = Node(tmp_path), stubborn(), make_pod("b")
    async with node.running(goes, stays):
        await trio.sleep(5)
        node.feed.put(stays)
        await trio.sleep(1)
    async with node.running(silent=True) as agent:
        await trio.sleep(1)
        assert shown(agent, goes).deletionTimestamp is not None
        await trio.sleep(GRACE)
        assert not node.runtime.alive(pod_uid(goes))
        assert node.runtime.alive(pod_uid(stays))
        # Wanted again once somebody speaks, it starts anew.
        node.feed.put(goes, stays)
        await trio.sleep(20)
        assert ready(node.status(goes))
        assert len(node.runtime.instances("b-node")) == 1


async def test_a_pod_that_ends_by_itself_is_not_terminating(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    node = Node(tmp_path)
    pod = make_pod("job", "exit-0-after-5", spec=["restartPolicy: Never"])
    async with node.running(pod) as agent:
        await trio.sleep(30)
        assert node.status(pod).phase == "Succeeded"
        assert shown(agent, pod).deletionTimestamp is None
        assert "ending" not in render_tree(agent.tree())
