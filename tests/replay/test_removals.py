"""Pods that a program gives and removes, and agents that end all of their pods, replayed."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from kubelet_trio.agent import Agent, core
from kubelet_trio.embed import KubeletConfig, open_kubelet
from kubelet_trio.recorder import read_ring, write_recording
from kubelet_trio.replay import Replay, replay_recording
from kubelet_trio.testing import Behaviour, FakeRuntime
from kubelet_trio.testing.embedded import fake_world
from tests.agent.node import Node, make_pod
from tests.replay.recordings import record

POD = {"metadata": {"name": "web"}, "spec": {"containers": [{"name": "web", "image": "web"}]}}


def slow() -> FakeRuntime:
    """Return a runtime whose containers take 3 s to stop."""
    runtime = FakeRuntime(behave=lambda _config: Behaviour(stop_takes=3.0), status_lag=0.06)
    runtime.latency = {"": 0.02}
    return runtime


def asked(found: Replay) -> list[tuple[int, str]]:
    return [(round(d.at - found.began), d.text) for d in found.decisions if d.kind == "asked"]


@pytest.fixture
def emptied(tmp_path: Path) -> Path:
    """An agent that ends its two pods, one of them a second faster, and gets another in vain."""
    node = Node(tmp_path)
    node.runtime = slow()
    first, second, late = make_pod("first"), make_pod("second"), make_pod("late")

    async def story(node: Node, agent: Agent) -> None:
        node.feed.put(first, second)
        await trio.sleep(10)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(agent.remove_pods)
            await trio.sleep(1)
            node.feed.put(first, second, late)
        assert not node.runtime.sandboxes

    return record(node, story)


def test_an_agent_ends_all_pods_as_it_did(emptied: Path) -> None:
    found = replay_recording(emptied)
    found.check()
    assert asked(found) == [(10, "end all pods for good")]
    calls = [d.text for d in found.decisions if d.kind == "call"]
    assert sum(text.startswith("stop container web") for text in calls) == 2
    assert not any(d.kind == "call" and d.pod == "default/late-node" for d in found.decisions)


def test_an_agent_that_keeps_its_pods_now_is_found(
    emptied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def keep(_agent: Agent) -> None:
        await trio.lowlevel.checkpoint()

    monkeypatch.setattr(core.Agent, "remove_pods", keep)
    found = replay_recording(emptied)
    assert found.divergence is not None
    assert found.divergence.recorded.startswith("stop container web")


def test_pods_of_a_program_come_and_go_as_they_did(tmp_path: Path) -> None:
    runtime = slow()
    config = KubeletConfig(
        root_dir=tmp_path / "root", runtime=runtime, node_name="node", flight_recorder_size=4 << 20
    )

    async def program() -> None:
        async with open_kubelet(config, world=fake_world(runtime, config)) as kubelet:
            async with kubelet.run_pod(POD) as running:
                await running.wait_ready()
                await trio.sleep(8)
            (kept,) = await kubelet.apply({**POD, "metadata": {"name": "kept"}})
            await kept.wait_ready()
            await trio.sleep(8)
            await kept.delete(grace_period=1)
            async with kubelet.run_pod({**POD, "metadata": {"name": "last"}}) as last:
                await last.wait_ready()
                await trio.sleep(5)

    trio.run(program, clock=MockClock(autojump_threshold=0))
    path = tmp_path / "program.rec"
    write_recording(path, read_ring(config.root))
    found = replay_recording(path)
    found.check()
    wanted = [d.text for d in found.decisions if d.kind == "wanted"]
    assert wanted.count("wanted") == wanted.count("not wanted any more") == 3
    assert "shorten the grace period to 1 s" in [text for _, text in asked(found)]
    stops = [d for d in found.decisions if d.kind == "call" and d.text.startswith("stop container")]
    assert len(stops) == 3
