"""The simulation finds bugs: each of these is planted, and it must fail.

A simulation that cannot fail proves nothing, so every kind of wrong that it is there for is
done once here, on purpose, and has to be found among a few examples.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
import trio

from kubelet_trio.agent import Agent
from kubelet_trio.cri import GuardedRuntime, RuntimeCallError
from kubelet_trio.model import ContainerId
from kubelet_trio.pods.plan import Change, order_changes, planner
from kubelet_trio.pods.steps import resize
from kubelet_trio.pods.types import TerminationRequest
from kubelet_trio.pods.worker import admitter, worker
from tests.simulation.agent_machine import AgentMachine
from tests.simulation.profile import run_machine
from tests.simulation.world import WitnessRuntime

EXAMPLES = 60


class SandboxFirst(WitnessRuntime):
    """As if the agent stopped the sandbox before its containers."""

    async def stop_container(self, container_id: ContainerId, grace_period: int) -> None:
        if container := self.containers.get(container_id):
            await self.stop_pod_sandbox(container.sandbox.id)
        await super().stop_container(container_id, grace_period)


class StartDoubled(WitnessRuntime):
    """As if the agent started a container again whose start it had forgotten."""

    async def start_container(self, container_id: ContainerId) -> None:
        await super().start_container(container_id)
        with suppress(RuntimeCallError):
            await super().start_container(container_id)


class ExitMissed(WitnessRuntime):
    """As if nobody ever noticed that a container has ended."""

    @property
    def status_lag(self) -> float:
        return float("inf")

    @status_lag.setter
    def status_lag(self, seconds: float) -> None:
        self.node.status_lag = float("inf")


def fails(runtime: type[WitnessRuntime] = WitnessRuntime) -> str:
    """Run the machine on a runtime, and return what it complains about."""

    class Machine(AgentMachine):
        make_runtime = runtime

    with pytest.raises(AssertionError) as failure:
        run_machine(Machine, examples=EXAMPLES, shrink=False)
    return str(failure.value)


def test_a_sandbox_that_is_stopped_first_is_found() -> None:
    assert "stopped while" in fails(SandboxFirst)


def test_a_start_that_is_doubled_is_found() -> None:
    assert "started twice" in fails(StartDoubled)


def test_an_exit_that_is_missed_is_found() -> None:
    fails(ExitMissed)


def test_a_termination_request_that_is_lost_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def remove_without_asking(self: worker.PodWorker, request: TerminationRequest) -> None:
        self.wake()

    monkeypatch.setattr(worker.PodWorker, "remove", remove_without_asking)
    fails()


def test_an_agent_that_stops_containers_when_it_is_killed_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = Agent.run

    async def run_and_clean_up(agent: Agent) -> None:
        try:
            await run(agent)
        finally:
            runtime = agent.seams.runtime
            with trio.CancelScope(shield=True), suppress(RuntimeCallError):
                for container in await runtime.list_containers():
                    await runtime.stop_container(ContainerId(container.id), 0)

    monkeypatch.setattr(Agent, "run", run_and_clean_up)
    assert "calls of an agent that was killed" in fails()


def test_a_call_that_is_cut_in_the_middle_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def end_with_the_asker(
        self: GuardedRuntime,
        operation: str,
        _target: str,
        call: Callable[[], Awaitable[object]],
        **_options: bool,
    ) -> object:
        return await self._read(operation, call)

    monkeypatch.setattr(GuardedRuntime, "_change", end_with_the_asker)
    assert "cut short" in fails()


def test_a_task_that_is_left_behind_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Agent.run

    async def run_and_leave_a_task(agent: Agent) -> None:
        trio.lowlevel.spawn_system_task(trio.sleep_forever)
        await run(agent)

    monkeypatch.setattr(Agent, "run", run_and_leave_a_task)
    assert "tasks are left behind" in fails()


def test_a_container_that_is_limited_above_its_pod_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def backwards(*given: Any) -> list[Change]:
        return order_changes(*given)[::-1]

    monkeypatch.setattr(resize, "order_changes", backwards)
    assert "of its pod" in fails()


def test_a_resize_that_is_not_carried_out_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "plan_resize", lambda *_: ())
    fails()


def test_a_resize_for_which_there_is_no_room_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admitter, "decide_resize_beside", lambda *_: None)
    assert "'cpu'" in fails()
