"""A pod that restarts all of its containers in place, under one agent and the next."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from lightkube.models.core_v1 import Pod
from trio.testing import MockClock

from kubelet_trio.model import pod_uid
from kubelet_trio.testing import FaultKind
from tests.agent.node import Node, make_pod, ready

RULE = "{action: RestartAllContainers, exitCodes: {operator: In, values: [42]}}"
INITS = (
    "initContainers:",
    "- {name: first, image: exit-0-after-1}",
    "- {name: side, image: side, restartPolicy: Always}",
)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def asking() -> Pod:
    """A pod whose container `web` asks for a restart of all by the exit code 42."""
    web = f"- {{name: web, image: web, restartPolicy: Never, restartPolicyRules: [{RULE}]}}"
    other = "- {name: other, image: stubborn}"
    spec = ("terminationGracePeriodSeconds: 300", *INITS)
    return make_pod(containers=f"{web}\n{other}", spec=spec)


def end(node: Node, name: str, code: int) -> None:
    (live,) = [c for c in node.runtime.alive() if c.name == name]
    node.runtime.kill(live.id, code)


async def test_all_containers_start_anew_in_the_same_sandbox(
    node: Node, autojump_clock: MockClock
) -> None:
    pod = asking()
    async with node.running(pod) as agent:
        await trio.sleep(20)
        before, ids = node.status(pod), {c.id for c in node.runtime.alive()}
        assert ready(before)
        end(node, "web", 42)
        await trio.sleep(20)
        after = node.status(pod)
        assert ready(after)
        assert after.podIP == before.podIP
        assert len(node.runtime.calls_of("RunPodSandbox")) == 1
        assert {c.name for c in node.runtime.alive()} == {"web", "other", "side"}
        assert not ids & {c.id for c in node.runtime.alive()}
        for name in ("first", "side", "web", "other"):
            status = node.container(pod, name)
            assert status.restartCount == 1
            assert status.lastState is not None
            assert status.lastState.terminated is not None
            assert status.lastState.terminated.reason == "RestartingAllContainers"
        killed = [e.message or "" for e in agent.events.events() if e.reason == "Killing"]
        assert sorted(killed) == [
            f"Container {name} will be restarted with all containers of its pod"
            for name in ("other", "side")
        ]
        kept = sorted(p.name for p in (node.base / "pods").glob("*/web/*.log"))
        assert kept == ["0.log", "1.log"]


async def test_the_restart_goes_on_under_the_next_agent(
    node: Node, autojump_clock: MockClock
) -> None:
    pod = asking()
    async with node.running(pod):
        await trio.sleep(20)
        hang = node.runtime.faults.add(FaultKind.HANG, "StopContainer", times=None)
        end(node, "web", 42)
        await trio.sleep(1)
        (said,) = [
            c for c in node.status(pod).conditions or () if c.type == "AllContainersRestarting"
        ]
        assert (said.status, said.reason) == ("True", "RestartAllContainersStarted")
    node.runtime.faults.lift(hang)
    # What had asked for it is gone as well: the record alone knows of it.
    dead = [c for c in node.runtime.node.containers.values() if c.name == "web"]
    await node.runtime.remove_container(dead[0].id)
    async with node.running(pod):
        await trio.sleep(30)
        assert ready(node.status(pod))
        counts = {n: node.container(pod, n).restartCount for n in ("web", "other", "side")}
        assert counts == {"web": 1, "other": 1, "side": 1}
        assert len(node.runtime.calls_of("RunPodSandbox")) == 1


async def test_a_pod_that_is_deleted_meanwhile_is_gone(
    node: Node, autojump_clock: MockClock
) -> None:
    pod = asking()
    async with node.running(pod):
        await trio.sleep(20)
        hang = node.runtime.faults.add(FaultKind.HANG, "StopContainer", times=1)
        end(node, "web", 42)
        await trio.sleep(1)
        node.feed.put()
        await trio.sleep(1)
        node.runtime.faults.lift(hang)
        await trio.sleep(400)
        assert not node.runtime.alive()
        assert pod_uid(pod) not in node.agent.pods.value  # type: ignore[union-attr]


async def test_a_pod_that_fails_at_once_is_held_back(node: Node, autojump_clock: MockClock) -> None:
    web = f"- {{name: web, image: exit-42, restartPolicy: Never, restartPolicyRules: [{RULE}]}}"
    pod = make_pod(containers=web)
    async with node.running(pod):
        await trio.sleep(600)
        assert 5 <= node.container(pod).restartCount <= 8
        assert "BackOff" in node.reasons(pod)
