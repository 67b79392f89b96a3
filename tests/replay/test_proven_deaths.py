"""Replays of restarts that began when the kernel had proved the end of a container."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from lightkube.models.core_v1 import Pod

from kubelet_trio.agent import Agent
from kubelet_trio.recorder import Kind
from kubelet_trio.replay import replay_recording
from kubelet_trio.testing import Behaviour, FakeRuntime
from tests.agent.node import Node, make_pod
from tests.replay.recordings import entries_of, record


@pytest.fixture
def node(tmp_path: Path) -> Node:
    node = Node(tmp_path)
    node.runtime = FakeRuntime(
        behave=lambda _c: Behaviour(exits_after=33.0, exit_code=1), status_lag=0.06
    )
    node.runtime.latency = {"": 0.02, "StartContainer": 0.1}
    return node


async def story(node: Node, agent: Agent, *others: Pod) -> None:
    node.feed.put(make_pod(), *others)
    await trio.sleep(55)
    for container in node.runtime.alive():
        node.runtime.kill(container.id)
    await trio.sleep(40)
    node.feed.put()
    await trio.sleep(40)


async def story_of_two(node: Node, agent: Agent) -> None:
    await story(node, agent, make_pod("once", spec=["restartPolicy: OnFailure"]))


@pytest.mark.parametrize("shares_processes", [False, True])
def test_a_restart_comes_when_it_came(node: Node, shares_processes: bool) -> None:
    node.runtime.exit_waiter.shares_processes = shares_processes
    found = replay_recording(record(node, story_of_two))
    found.check()
    created = [d for d in found.decisions if d.text.startswith("create container web, attempt 1")]
    assert len(created) == 2


def test_it_comes_with_the_end_of_the_process_however_late_the_runtime_tells(node: Node) -> None:
    node.runtime.status_lag = 2.0
    found = replay_recording(record(node, story))
    found.check()
    (ended, *_) = [each.at for each in entries_of(node) if each.kind is Kind.EXIT]
    created = [d.at for d in found.decisions if d.text == "create container web, attempt 1"]
    assert [at - found.began for at in created] == pytest.approx([ended])
