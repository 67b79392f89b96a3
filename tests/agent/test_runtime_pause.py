"""When pods are not synced: the runtime is away, silent for long, or cannot be listed."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from kubelet_trio.cri import ExecResult, RuntimeCallError
from kubelet_trio.testing import FakeContainer, FakeExec, FaultKind
from tests.agent.node import Node, make_pod, ready
from tests.agent.test_probes import probe, probed


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.mark.parametrize("kind", [FaultKind.HANG, FaultKind.ERROR])
async def test_a_status_that_fails_keeps_no_pod_waiting_for_half_a_minute(
    node: Node, kind: FaultKind, autojump_clock: MockClock
) -> None:
    soon, late = make_pod("soon"), make_pod("late")
    async with node.running() as agent:
        await trio.sleep(1)
        error = RuntimeCallError("Status", "too busy") if kind is FaultKind.ERROR else None
        fault = node.runtime.faults.add(kind, "Status", times=None, error=error)
        await trio.sleep(20)
        assert agent.status().runtime.problem
        node.feed.put(soon)
        await trio.sleep(2)
        assert ready(node.status(soon))
        await trio.sleep(30)
        node.feed.put(soon, late)
        await trio.sleep(60)
        assert not node.runtime.calls_of("CreateContainer")[1:]
        assert node.status(late).phase == "Pending"
        node.runtime.faults.lift(fault)
        await trio.sleep(20)
        assert ready(node.status(late))


async def test_a_runtime_that_says_it_is_not_ready_is_believed_at_once(
    node: Node, autojump_clock: MockClock
) -> None:
    pod = make_pod()
    async with node.running():
        await trio.sleep(1)
        node.runtime.runtime_ready = False
        await trio.sleep(6)
        node.feed.put(pod)
        await trio.sleep(20)
        assert not node.runtime.calls_of("RunPodSandbox")
        node.runtime.runtime_ready = True
        await trio.sleep(2)
        assert ready(node.status(pod))


async def test_nothing_is_done_to_a_pod_while_nobody_knows_what_runs(
    node: Node, autojump_clock: MockClock
) -> None:
    failing = False

    def answer(_container: FakeContainer, _command: list[str]) -> FakeExec:
        return FakeExec(result=ExecResult(b"", b"", int(failing)))

    node.runtime.on_exec = answer
    pod = probed(probe("liveness", "alive", periodSeconds=1))
    async with node.running(pod) as agent:
        await trio.sleep(5)
        (first,) = node.runtime.alive()
        error = RuntimeCallError("ListContainers", "not now")
        fault = node.runtime.faults.add(FaultKind.ERROR, "ListContainers", times=None, error=error)
        await trio.sleep(200)
        assert "PLEG is not healthy" in (agent.check_functions()["pleg"]() or "")
        failing = True
        await trio.sleep(100)
        assert node.runtime.alive() == [first]
        node.runtime.faults.lift(fault)
        failing = False
        await trio.sleep(5)
        (second,) = node.runtime.alive()
        assert second.id != first.id
