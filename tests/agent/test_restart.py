"""A restart by hand: in place, without a back-off, and refused where nothing would start again."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from kubelet_trio.model import pod_uid
from kubelet_trio.pods import RestartRefusedError
from tests.agent.node import Node, make_pod, ready

SIDE = ("initContainers:", "- {name: side, image: side, restartPolicy: Always}")


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


async def test_all_containers_restart_in_the_same_sandbox(
    node: Node, autojump_clock: MockClock
) -> None:
    pod = make_pod(containers="- {name: a, image: a}\n- {name: b, image: b}", spec=SIDE)
    async with node.running(pod) as agent:
        await trio.sleep(20)
        ids = {c.id for c in node.runtime.alive()}
        assert agent.restart(pod_uid(pod), "") == ["a", "b", "side"]
        await trio.sleep(5)
        assert ready(node.status(pod))
        assert not ids & {c.id for c in node.runtime.alive()}
        assert [node.container(pod, name).restartCount for name in ("a", "b", "side")] == [1, 1, 1]
        assert len(node.runtime.calls_of("RunPodSandbox")) == 1
        killed = {e.message for e in agent.events.events() if e.reason == "Killing"}
        assert killed == {
            f"Container {name} is restarted on request" for name in ["a", "b", "side"]
        }


async def test_one_container_restarts_again_and_again_without_a_back_off(
    node: Node, autojump_clock: MockClock
) -> None:
    pod = make_pod(containers="- {name: a, image: a}\n- {name: b, image: b}")
    async with node.running(pod) as agent:
        await trio.sleep(20)
        for count in (1, 2, 3):
            assert agent.restart(pod_uid(pod), "a") == ["a"]
            await trio.sleep(2)
            assert ready(node.status(pod))
            assert node.container(pod, "a").restartCount == count
        assert node.container(pod, "b").restartCount == 0


async def test_a_container_in_its_back_off_starts_at_once(
    node: Node, autojump_clock: MockClock
) -> None:
    pod = make_pod(containers="- {name: a, image: exit-1-after-1}")
    async with node.running(pod) as agent:
        await trio.sleep(30)
        before = node.container(pod, "a")
        assert before.state is not None
        assert before.state.waiting is not None
        assert before.state.waiting.reason == "CrashLoopBackOff"
        agent.restart(pod_uid(pod), "a")
        await trio.sleep(0.5)
        after = node.container(pod, "a")
        assert after.restartCount == (before.restartCount or 0) + 1
        assert after.state is not None
        assert after.state.running is not None


@pytest.mark.parametrize(
    ("spec", "name", "why"),
    [
        (("restartPolicy: Never",), "", "restartPolicy Never"),
        ((), "other", r'no container "other".* are web'),
    ],
)
async def test_what_cannot_restart_is_refused(
    node: Node, autojump_clock: MockClock, spec: tuple[str, ...], name: str, why: str
) -> None:
    pod = make_pod(containers="- {name: web, image: web}", spec=spec)
    async with node.running(pod) as agent:
        await trio.sleep(10)
        (before,) = node.runtime.alive()
        with pytest.raises(RestartRefusedError, match=why):
            agent.restart(pod_uid(pod), name)
        await trio.sleep(10)
        assert [c.id for c in node.runtime.alive()] == [before.id]
