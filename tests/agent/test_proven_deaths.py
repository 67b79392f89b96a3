"""Containers whose end the kernel has proved: what starts at once, and what is told of them."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
import trio
from lightkube.models.core_v1 import ContainerStatus, Pod
from trio.testing import MockClock

from kubelet_trio.agent import Agent
from kubelet_trio.model import pod_uid
from kubelet_trio.pods import EndReason, TerminationRequest
from kubelet_trio.testing import Behaviour, FakeExec, FakeRuntime
from kubelet_trio.testing.exits import FakeExitWatch
from tests.agent.node import Node, make_pod


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def states(statuses: list[ContainerStatus]) -> list[tuple[str, int, int | None]]:
    """Return each state, restart count and exit code of the instance before, once in a row."""
    found: list[tuple[str, int, int | None]] = []
    for status in statuses:
        assert status.state is not None
        state = "waiting"
        if status.state.running is not None:
            state = "running"
        if status.state.terminated is not None:
            state = f"terminated {status.state.terminated.exitCode}"
        last = status.lastState.terminated if status.lastState is not None else None
        told = state, status.restartCount, last.exitCode if last is not None else None
        if not found or found[-1] != told:
            found.append(told)
    return found


async def follow(agent: Agent, pod: Pod, told: list[ContainerStatus]) -> None:
    """Collect what the agent says of the pod's first container."""
    async for pods in agent.pods.eventual_values():
        now = pods.get(pod_uid(pod))
        if now is not None and now.status is not None and now.status.containerStatuses:
            told.append(now.status.containerStatuses[0])


def starts(runtime: FakeRuntime) -> list[float]:
    return [call.time for call in runtime.calls_of("StartContainer")]


@pytest.mark.parametrize(
    ("start_takes", "hook_takes", "expected"),
    [
        # The successor runs before the runtime tells: the two are shown together.
        (0.0, 0.0, [("running", 0, None), ("running", 1, 3)]),
        # Its start takes long: meanwhile its predecessor's end is shown, and nothing of it.
        (5.0, 0.0, [("running", 0, None), ("terminated 3", 0, None), ("running", 1, 3)]),
        (0.0, 5.0, [("running", 0, None), ("terminated 3", 0, None), ("running", 1, 3)]),
    ],
)
async def test_a_restart_is_shown_together_with_the_end_before_it(
    node: Node,
    autojump_clock: MockClock,
    start_takes: float,
    hook_takes: float,
    expected: list[tuple[str, int, int | None]],
) -> None:
    node.runtime.on_exec = lambda _container, _command: FakeExec(takes=hook_takes)
    pod = make_pod(
        containers="- {name: web, image: web, imagePullPolicy: IfNotPresent, "
        "lifecycle: {postStart: {exec: {command: [warm-up]}}}}"
    )
    told: list[ContainerStatus] = []
    async with node.running(pod) as agent, trio.open_nursery() as nursery:
        await trio.sleep(20)
        nursery.start_soon(follow, agent, pod, told)
        (container,) = node.runtime.alive()
        node.runtime.latency = {"StartContainer": start_takes}
        died = trio.current_time()
        node.runtime.kill(container.id, exit_code=3, reason="OOMKilled")
        await trio.sleep(0.01)
        assert [call.time for call in node.runtime.calls_of("CreateContainer")][-1] == died
        await trio.sleep(30)
        nursery.cancel_scope.cancel()
    assert states(told) == expected
    last = told[-1].lastState
    assert last is not None
    assert last.terminated is not None
    assert last.terminated.reason == "OOMKilled"
    assert last.terminated.containerID == f"fake://{container.id}"
    assert last.terminated.finishedAt is not None
    assert node.runtime.violations == []


async def test_the_last_message_of_a_container_is_told(
    node: Node, autojump_clock: MockClock
) -> None:
    node.runtime = FakeRuntime(
        behave=lambda _c: Behaviour(exits_after=30.0, exit_code=1, termination_message="no disk"),
        status_lag=0.06,
    )
    pod = make_pod()
    async with node.running(pod):
        await trio.sleep(35)
        last = node.container(pod).lastState
        assert last is not None
        assert last.terminated is not None
        assert (last.terminated.exitCode, last.terminated.message) == (1, "no disk")
        assert len(node.runtime.alive()) == 1


async def restarts_of(
    base: Path, *, shares_processes: bool, exit_code: int, lag: float
) -> tuple[list[float], list[str], int]:
    """Return the starts of a container that crashes, the events, and its restart count."""
    node = Node(base)
    node.runtime = FakeRuntime(
        behave=lambda _c: Behaviour(exits_after=3.0, exit_code=exit_code), status_lag=lag
    )
    node.runtime.exit_waiter.shares_processes = shares_processes
    pod = make_pod()
    async with node.running(pod):
        await trio.sleep(500)
        count = node.container(pod).restartCount
        assert node.runtime.violations == []
        return starts(node.runtime), sorted(node.reasons(pod)), count


@pytest.mark.parametrize("exit_code", [0, 1])
@pytest.mark.parametrize("lag", [0.06, 2.0])
async def test_crashes_count_as_those_that_the_runtime_tells(
    tmp_path: Path, autojump_clock: MockClock, exit_code: int, lag: float
) -> None:
    """The first restart comes at once, the others when the back-off since the end is over."""
    crash = partial(restarts_of, exit_code=exit_code, lag=lag)
    proven = await crash(tmp_path / "proven", shares_processes=False)
    told = await crash(tmp_path / "told", shares_processes=True)
    assert proven[1:] == told[1:]
    assert len(proven[0]) == len(told[0])
    for found, noticed in ((proven[0], 0.0), (told[0], lag)):
        gaps = [after - before for before, after in pairwise(found)]
        assert gaps[0] == pytest.approx(3 + noticed, abs=noticed / 3)
        assert gaps[1:4] == pytest.approx([13, 23, 43], abs=0.1)


@pytest.mark.parametrize("reason", [EndReason.EVICTED, EndReason.SHUTDOWN, None])
async def test_a_pod_that_ends_starts_no_successor(
    node: Node, autojump_clock: MockClock, reason: EndReason | None
) -> None:
    pod = make_pod()
    async with node.running(pod) as agent:
        await trio.sleep(20)
        (container,) = node.runtime.alive()
        before = len(starts(node.runtime))
        node.runtime.kill(container.id)
        if reason is None:
            node.feed.put()  # the agent learns of both at the same moment
        else:
            worker = agent.parts.workers[pod_uid(pod)]
            worker.request(TerminationRequest(pod_uid(pod), reason, 10))
        await trio.sleep(60)
        assert len(starts(node.runtime)) == before
        assert node.runtime.alive() == []
    assert node.runtime.violations == []


class LyingWatch(FakeExitWatch):
    """Says that a process has ended which runs on: as no kernel does."""

    async def wait_exited(self) -> None:
        await trio.sleep(20)


async def test_of_two_instances_the_older_one_is_stopped_should_the_proof_be_wrong(
    node: Node, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiter = node.runtime.exit_waiter
    opened = waiter.open
    watches = iter([LyingWatch])

    def open_watch(pid: int) -> FakeExitWatch:
        watch = opened(pid)
        return next(watches, FakeExitWatch)(waiter, watch._container)

    monkeypatch.setattr(waiter, "open", open_watch)
    pod = make_pod()
    async with node.running(pod):
        await trio.sleep(10)
        (first,) = node.runtime.alive()
        await trio.sleep(60)
        (second,) = node.runtime.alive()
        assert second is not first
        assert node.container(pod).restartCount == 1
        assert len(starts(node.runtime)) == 2
