"""Agents that end and start again in one recording: the next one finds what the last has left."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from kubelet_trio.agent import Agent
from kubelet_trio.model import pod_uid
from kubelet_trio.recorder import write_recording
from kubelet_trio.replay import Replay, life, replay_recording
from kubelet_trio.testing import Behaviour, FakeRuntime
from kubelet_trio.testing.objects import FakeUsage
from tests.agent.node import Node, make_pod
from tests.replay.recordings import entries_of
from tests.replay.test_evictions import HARD, Machine, ended, from_api, phase

Life = Callable[[Agent], Awaitable[None]]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    node = Node(tmp_path)
    node.runtime.latency = {"": 0.02}
    return node


async def nothing() -> None:
    await trio.lowlevel.checkpoint()


def record_lives(
    node: Node,
    lives: Sequence[Life],
    *,
    between: float,
    meanwhile: Callable[[], Awaitable[None]] = nothing,
    **told: Any,
) -> Path:
    """Let an agent live several times; it is stopped in order each time."""

    async def main() -> None:
        for number, live in enumerate(lives):
            if number:
                await meanwhile()
                await trio.sleep(between)
            async with node.running(silent=True, recorder_size=4 << 20, **told) as agent:
                await live(agent)
                agent.stop()
                await trio.sleep(5)

    trio.run(main, clock=MockClock(autojump_threshold=0))
    path = node.base / "node.rec"
    write_recording(path, entries_of(node))
    return path


def calls(found: Replay, text: str) -> list[float]:
    """Return when a call was made, in seconds from the beginning."""
    told = [d for d in found.decisions if d.kind == "call" and d.text.startswith(text)]
    return [round(d.at - found.began, 1) for d in told]


def test_a_back_off_goes_on_or_not_as_it_did(node: Node) -> None:
    node.runtime = FakeRuntime(
        behave=lambda _config: Behaviour(exits_after=2.0, exit_code=1), status_lag=0.06
    )
    node.runtime.latency = {"": 0.02}
    pod = make_pod()

    async def live(_agent: Agent) -> None:
        node.feed.put(pod)
        await trio.sleep(50)

    found = replay_recording(record_lives(node, [live, live, live], between=4))
    found.check()
    assert found.starts == 3
    starts = calls(found, "start container web")
    assert len([at for at in starts if at < 55]) >= 2
    assert len([at for at in starts if at > 55]) >= 2


def test_what_ended_while_no_agent_ran(node: Node) -> None:
    pod, other = make_pod(), make_pod("other")

    async def first(_agent: Agent) -> None:
        node.feed.put(pod, other)
        await trio.sleep(20)

    async def killed() -> None:
        (container,) = node.runtime.alive(pod_uid(pod))
        node.runtime.kill(container.id, 3)
        await trio.sleep(15)

    async def second(_agent: Agent) -> None:
        node.feed.put(other)  # the manifest of the first was removed meanwhile
        await trio.sleep(60)

    found = replay_recording(record_lives(node, [first, second], between=15, meanwhile=killed))
    found.check()
    assert calls(found, "remove the sandbox")


@pytest.fixture
def ending(node: Node) -> Path:
    """A pod that takes 40 s to end, and an agent that is restarted meanwhile."""
    node.runtime = FakeRuntime(behave=lambda _config: Behaviour(stop_takes=40.0), status_lag=0.06)
    node.runtime.latency = {"": 0.02}
    pod = make_pod(spec=["terminationGracePeriodSeconds: 60"])

    async def first(_agent: Agent) -> None:
        node.feed.put(pod)
        await trio.sleep(10)
        node.feed.put()
        await trio.sleep(10)

    async def second(_agent: Agent) -> None:
        node.feed.put()
        await trio.sleep(90)

    return record_lives(node, [first, second], between=5)


def test_a_pod_that_was_ending(ending: Path) -> None:
    found = replay_recording(ending)
    found.check()
    assert calls(found, "stop container web, grace 60 s")[0] < 11
    assert calls(found, "remove the sandbox")


def test_an_agent_that_forgets_is_found(ending: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(life, "load_records", lambda _directory: {})
    found = replay_recording(ending)
    assert found.divergence is not None
    assert found.divergence.pod == "default/web-node"
    assert 25 < found.divergence.at - found.began < 35


def test_an_evicted_pod_stays_evicted(node: Node) -> None:
    node.runtime.usage = lambda _container: FakeUsage(memory=300 << 20)
    machine = Machine()
    node.signals = machine
    pod = from_api(make_pod())

    async def first(agent: Agent) -> None:
        node.feed.put(pod)
        await trio.sleep(15)
        machine.memory = 90 << 20
        await ended(agent, pod)
        machine.memory = 900 << 20

    async def second(agent: Agent) -> None:
        node.feed.put(pod)
        await trio.sleep(40)
        assert phase(agent, pod) == "Failed"

    found = replay_recording(record_lives(node, [first, second], between=5, eviction=HARD))
    found.check()
    assert [d.pod for d in found.decisions if d.kind == "evict"] == ["default/web-node"]
    assert len(calls(found, "start container web")) == 1
