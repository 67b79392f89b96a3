"""The faults that the fake runtime takes, and what they leave behind."""

from __future__ import annotations

import pytest
import trio

from kubelet_trio.cri import (
    ExecResult,
    RuntimeCallError,
    RuntimeTimeoutError,
    RuntimeUnavailableError,
    UnsupportedCallError,
    v1,
)
from kubelet_trio.testing import EPOCH, FakeExec, FakeRuntime, FaultKind, TrioClock
from kubelet_trio.testing.fixtures import run_pod, sandbox_config

STOPPED = v1.ContainerEventType.CONTAINER_STOPPED_EVENT


async def test_an_error_takes_no_effect_and_hits_as_often_as_asked(
    autojump_clock: object,
) -> None:
    runtime = FakeRuntime()
    runtime.faults.add(FaultKind.ERROR, "RunPodSandbox", "web", times=2, delay=1)
    await runtime.run_pod_sandbox(sandbox_config("other"))
    for _ in range(2):
        with pytest.raises(RuntimeCallError):
            await runtime.run_pod_sandbox(sandbox_config())
    assert (trio.current_time(), len(runtime.sandboxes)) == (2, 1)
    await runtime.run_pod_sandbox(sandbox_config())


async def test_a_lost_reply_has_taken_effect(autojump_clock: object) -> None:
    runtime = FakeRuntime()
    runtime.faults.add(FaultKind.LOST_REPLY, "RunPodSandbox")
    with pytest.raises(RuntimeUnavailableError):
        await runtime.run_pod_sandbox(sandbox_config())
    assert len(runtime.sandboxes) == 1


async def test_a_hanging_call_ends_at_its_deadline(autojump_clock: object) -> None:
    runtime = FakeRuntime()
    _, [container_id] = await run_pod(runtime)
    runtime.faults.add(FaultKind.HANG, "StopContainer", times=None)
    with pytest.raises(RuntimeTimeoutError):
        await runtime.stop_container(container_id, 30)
    assert trio.current_time() == 150
    assert runtime.alive()


async def test_a_hanging_call_goes_on_once_the_fault_is_lifted(autojump_clock: object) -> None:
    runtime = FakeRuntime()
    runtime.faults.add(FaultKind.HANG, "RunPodSandbox")
    async with trio.open_nursery() as calls:
        calls.start_soon(runtime.run_pod_sandbox, sandbox_config())
        await trio.sleep(10)
        assert not runtime.sandboxes
        runtime.faults.clear()
    assert len(runtime.sandboxes) == 1
    assert trio.current_time() == 10


async def test_a_slow_call_takes_longer(autojump_clock: object) -> None:
    runtime = FakeRuntime()
    runtime.latency[""] = 0.5
    runtime.faults.add(FaultKind.SLOW, "Version", delay=3)
    await runtime.version()
    await runtime.status()
    assert trio.current_time() == 4


async def test_a_runtime_that_is_down_breaks_calls_in_flight_and_keeps_containers(
    autojump_clock: object,
) -> None:
    runtime = FakeRuntime()
    _, [container_id] = await run_pod(runtime, images=("stubborn",))

    async def go_down_later() -> None:
        await trio.sleep(1)
        runtime.go_down()

    async with trio.open_nursery() as meanwhile:
        meanwhile.start_soon(go_down_later)
        with pytest.raises(RuntimeUnavailableError):
            await runtime.stop_container(container_id, 30)
    with pytest.raises(RuntimeUnavailableError):
        await runtime.list_containers()
    await trio.sleep(100)
    runtime.restart()
    assert len((await runtime.list_containers()).entries) == 1
    assert [c.id for c in runtime.alive()] == [container_id]


async def test_commands_run_as_told_and_die_with_their_container(autojump_clock: object) -> None:
    runtime = FakeRuntime()
    _, [container_id] = await run_pod(runtime, images=("exit-0-after-100",))
    runtime.on_exec = lambda _container, command: FakeExec(
        takes=float(command[0]), result=ExecResult(b"out", b"", 4)
    )
    assert await runtime.exec_sync(container_id, ["5"], 10) == ExecResult(b"out", b"", 4)
    with pytest.raises(RuntimeTimeoutError):
        await runtime.exec_sync(container_id, ["20"], 10)
    assert (await runtime.exec_sync(container_id, ["1000"], 0)).exit_code == 137
    assert trio.current_time() == 100
    with pytest.raises(RuntimeCallError):
        await runtime.exec_sync(container_id, ["1"], 0)


async def test_events_tell_of_deaths_once_the_status_does(autojump_clock: object) -> None:
    runtime = FakeRuntime(events=True, status_lag=0.5)
    async with runtime.container_events() as events:
        _, [container_id] = await run_pod(runtime, images=("exit-1-after-5",))
        async for event in events:
            if event.container_event_type == STOPPED:
                break
    assert trio.current_time() == 5.5
    assert event.container_id == container_id
    [status] = event.containers_statuses
    assert status.exit_code == 1


async def test_events_may_be_half_filled_broken_or_missing(autojump_clock: object) -> None:
    runtime = FakeRuntime(events=True, half_filled_events=True)
    async with runtime.container_events() as events:
        sandbox_id, _ = await run_pod(runtime)
        event = await anext(events)
        assert (event.container_id, event.pod_sandbox_status) == (sandbox_id, None)
        runtime.go_down()
        with pytest.raises(RuntimeUnavailableError):
            await anext(events)
    async with FakeRuntime().container_events() as events:
        with pytest.raises(UnsupportedCallError):
            await anext(events)


async def test_the_wall_clock_follows_trio_until_it_is_stepped(autojump_clock: object) -> None:
    clock = TrioClock()
    await trio.sleep(10)
    assert clock.time() == EPOCH + 10
    clock.step(-3600)
    assert clock.time() == EPOCH + 10 - 3600
