"""What a replay must keep of the instants at which a recorded agent has looked at its runtime.

A replayed agent that looks a little earlier or later sees something else, and decides otherwise.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from kubelet_trio.agent import Agent
from kubelet_trio.replay import replay_recording
from tests.agent.node import Node, make_pod
from tests.replay.recordings import record


@pytest.fixture
def node(tmp_path: Path) -> Node:
    node = Node(tmp_path)
    node.runtime.latency = {"": 0.02, "RunPodSandbox": 0.3, "StartContainer": 0.15}
    return node


def test_an_outage_ends_waits_when_the_recorded_agent_has_found_it(node: Node) -> None:
    """A slow Status: 5 s later than the replayed agent, the recorded one asks again."""
    node.runtime.latency["Status"] = 0.5
    pod = make_pod(image="missing")

    async def story(node: Node, agent: Agent) -> None:
        node.feed.put(pod)
        await trio.sleep(
            16
        )  # its pull waits; the recorded agent asks at 16.6, the replayed at 15.5
        node.runtime.go_down()
        await trio.sleep(10)
        node.runtime.restart()
        await trio.sleep(10)

    replay_recording(record(node, story)).check()


def test_a_relist_while_a_container_is_being_started(node: Node) -> None:
    """It has shown that it is not running yet: after the start that is out of date."""
    node.runtime.latency["StartContainer"] = 1.0
    pod = make_pod()

    async def story(node: Node, agent: Agent) -> None:
        node.feed.put(pod)
        await trio.sleep(0.9)
        agent.parts.runtime.pleg.relist_soon()
        await trio.sleep(20)

    found = replay_recording(record(node, story))
    found.check()
    assert [d.text for d in found.decisions if d.kind == "call"][-1] == "start container web"


def test_an_image_that_could_not_be_pulled_is_not_there(node: Node) -> None:
    """Whether it is there was asked once; a pull that failed has not changed it."""
    pod = make_pod(image="missing")

    async def story(node: Node, agent: Agent) -> None:
        node.feed.put(pod)
        await trio.sleep(60)

    found = replay_recording(record(node, story))
    found.check()
    assert {d.text for d in found.decisions if d.kind == "call"} == {
        *("run the sandbox", "pull image missing")
    }
