"""Exits are known at once, late, or at the next relist, but always known."""

from __future__ import annotations

import pytest
import trio

from kubelet_trio.model import ContainerId, ContainerState
from kubelet_trio.testing import FakeRuntime, FaultKind
from kubelet_trio.testing.fixtures import run_pod
from tests.pleg.node import WEB, watched

EXITED, RUNNING = ContainerState.EXITED, ContainerState.RUNNING


@pytest.mark.parametrize("lag", [0.0, 0.06, 0.5])
async def test_an_exit_is_known_soon_after_the_status_tells_it(
    lag: float, autojump_clock: object
) -> None:
    runtime = FakeRuntime(status_lag=lag)
    _, [container_id] = await run_pod(runtime, images=("exit-3-after-5",))
    async with watched(runtime) as node:
        await trio.sleep(4)
        assert node.state(container_id) is RUNNING
        node.wakes.clear()
        await trio.sleep(4)
        record = node.pleg.cache.get(WEB).containers[0]
        assert (record.state, record.exit_code, record.reason) == (EXITED, 3, "Error")
        woken = node.woken_at()
        assert woken is not None
        assert 5 + lag < woken <= 5 + 2 * lag + 0.006
        assert node.pleg.watched == 0


async def test_a_kill_is_known_while_other_watches_go_on(autojump_clock: object) -> None:
    runtime = FakeRuntime(status_lag=0.06)
    _, [killed, spared] = await run_pod(runtime, images=("run", "run"))
    async with watched(runtime) as node:
        await trio.sleep(3)
        runtime.kill(killed, 137, "OOMKilled")
        await trio.sleep(0.2)
        assert node.state(killed) is EXITED
        assert node.pleg.cache.get(WEB).latest("main").reason == "OOMKilled"  # type: ignore[union-attr]
        assert (node.state(spared), node.pleg.watched) == (RUNNING, 1)


@pytest.mark.parametrize(("stops_for", "known_after"), [(0.4, 0.65), (60.0, 5.7)])
async def test_the_exit_of_a_container_that_is_being_stopped_is_left_to_the_stop(
    stops_for: float, known_after: float, autojump_clock: object
) -> None:
    runtime = FakeRuntime()
    _, [container_id] = await run_pod(runtime, images=("run",))
    until = 3.0 + stops_for

    def is_stopping(asked: ContainerId) -> bool:
        return asked == container_id and trio.current_time() < until

    async with watched(runtime, is_stopping=is_stopping) as node:
        await trio.sleep_until(3.0)
        asked = len(runtime.calls_of("ContainerStatus"))
        runtime.kill(container_id, 143, "Error")
        await trio.sleep(min(stops_for, 4.9))
        assert len(runtime.calls_of("ContainerStatus")) == asked
        assert node.state(container_id) is RUNNING
        await trio.sleep_until(3.0 + known_after)
        assert node.state(container_id) is EXITED
        assert len(runtime.calls_of("ContainerStatus")) == asked + 1


async def test_a_missed_exit_is_found_by_the_relist(autojump_clock: object) -> None:
    runtime = FakeRuntime()
    runtime.exit_waiter.deaf = True
    _, [container_id] = await run_pod(runtime, images=("exit-0-after-5",))
    async with watched(runtime) as node:
        await trio.sleep(9)
        assert node.state(container_id) is RUNNING
        await trio.sleep(2)
        assert node.state(container_id) is EXITED
        assert node.woken_at() == 10
        assert node.pleg.watched == 0


@pytest.mark.parametrize("why", ["no pid", "no pidfds", "no waiter"])
async def test_without_watches_the_relist_comes_every_second(
    why: str, autojump_clock: object
) -> None:
    runtime = FakeRuntime(reports_pids=why != "no pid")
    if why == "no pidfds":
        runtime.exit_waiter.error = PermissionError("not here")
    _, [container_id] = await run_pod(runtime, images=("exit-0-after-5.5",))
    async with watched(runtime, waiter=why != "no waiter") as node:
        await trio.sleep(8.5)
        assert node.state(container_id) is EXITED
        assert node.woken_at() == 6
        listed = len(runtime.calls_of("ListContainers"))
        await trio.sleep(60)
        assert len(runtime.calls_of("ListContainers")) == listed + 6


async def test_a_pid_that_was_not_the_containers_means_a_short_relist(
    autojump_clock: object,
) -> None:
    # As if the runtime lived in another PID namespace: no process has that number here.
    runtime = FakeRuntime()
    runtime.exit_waiter.error = ProcessLookupError("no such process")
    _, [container_id] = await run_pod(runtime, images=("exit-0-after-30.5",))
    async with watched(runtime) as node:
        await trio.sleep(20)
        asked = len(runtime.calls_of("ContainerStatus"))
        await trio.sleep(15)
        assert node.state(container_id) is EXITED
        assert 30.5 < (node.woken_at() or 0) <= 31.5
        assert len(runtime.calls_of("ContainerStatus")) == asked + 1


async def test_an_exit_while_the_runtime_is_down_is_known_when_it_is_back(
    autojump_clock: object,
) -> None:
    runtime = FakeRuntime()
    _, [container_id] = await run_pod(runtime, images=("exit-0-after-5",))
    async with watched(runtime) as node:
        await trio.sleep(4)
        runtime.go_down()
        await trio.sleep(60)
        assert node.state(container_id) is RUNNING
        assert node.pleg.watched == 1
        runtime.restart()
        await trio.sleep(1.1)
        assert node.state(container_id) is EXITED


async def test_a_container_that_vanished_is_dropped(autojump_clock: object) -> None:
    runtime = FakeRuntime()
    sandbox_id, [gone, kept] = await run_pod(runtime, images=("run", "run"))
    async with watched(runtime) as node:
        await trio.sleep(3)
        runtime.forget(gone)
        await trio.sleep(0.1)
        assert (node.state(gone), node.state(kept)) == (None, RUNNING)
        runtime.kill_sandbox(sandbox_id)
        runtime.forget(kept)
        runtime.node.remove_sandbox(runtime.sandboxes[sandbox_id])
        await trio.sleep(10)
        assert not node.pleg.cache.get(WEB).exists
        assert (list(node.pleg.cache.pods()), node.pleg.known_uids) == ([], frozenset())


async def test_a_sandbox_that_dies_is_known_at_once_from_events(autojump_clock: object) -> None:
    runtime = FakeRuntime(events=True, half_filled_events=True)
    async with watched(runtime) as node:
        sandbox_id, _ = await run_pod(runtime)
        await trio.sleep(5)
        assert node.pleg.cache.get(WEB).sandboxes[0].ready
        for name in (
            "kubelet_evented_pleg_connection_latency_seconds",
            "kubelet_pleg_pod_relist_duration_seconds",
        ):
            [(_, took)] = node.meter.histograms(name)
            assert took.count > 0
        node.wakes.clear()
        runtime.kill_sandbox(sandbox_id)
        await trio.sleep(0.1)
        assert not node.pleg.cache.get(WEB).sandboxes[0].ready
        assert node.woken_at() == 5


@pytest.mark.parametrize("events_after", [True, False])
async def test_an_exit_after_the_clean_end_of_the_events_is_known_by_the_relist(
    events_after: bool, autojump_clock: object
) -> None:
    runtime = FakeRuntime(events=True)
    _, [container] = await run_pod(runtime)
    async with watched(runtime, waiter=None) as node:
        await trio.sleep(5)
        await run_pod(runtime, "other")  # its events come: from here on they are relied on
        await trio.sleep(25)
        runtime.end_event_streams()
        runtime.events = events_after
        await trio.sleep(0.5)
        runtime.kill(container)
        await trio.sleep(2)
        assert node.state(container) is ContainerState.EXITED


async def test_events_do_without_exit_watchers_and_outlive_the_runtime(
    autojump_clock: object,
) -> None:
    runtime = FakeRuntime(events=True, status_lag=0.06)
    async with watched(runtime, waiter=None) as node:
        _, [first, second] = await run_pod(runtime, images=("run", "run"))
        await trio.sleep(15)
        listed = len(runtime.calls_of("ListContainers"))
        await trio.sleep(20)
        assert len(runtime.calls_of("ListContainers")) == listed + 2
        runtime.kill(first)
        await trio.sleep(0.1)
        assert node.state(first) is EXITED
        runtime.go_down()
        await trio.sleep(20)
        runtime.kill(second)
        runtime.restart()
        await trio.sleep(10)
        assert node.state(second) is EXITED
        connected = "kubelet_evented_pleg_connection_success_count"
        assert dict(node.meter.counters(connected)) == {(): 1}  # nothing was told since
        (failures,) = node.meter.counters("kubelet_evented_pleg_connection_error_count")
        assert failures[1] >= 2


async def test_an_unanswered_check_of_the_pid_is_asked_again(autojump_clock: object) -> None:
    runtime = FakeRuntime(status_lag=0.06)
    async with watched(runtime) as node:
        _, [container_id] = await run_pod(runtime, images=("exit-0-after-5",))
        await node.pleg.refresh(WEB, listing=True)
        runtime.faults.add(FaultKind.ERROR, "ContainerStatus", times=2)
        await trio.sleep(6)
        assert node.state(container_id) is EXITED
