"""What a call leaves behind that changes something and is cancelled: as containerd has it."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from kubelet_trio.cri import RuntimeTimeoutError, v1
from kubelet_trio.model import ContainerId, SandboxId
from kubelet_trio.testing import FakeExec, FakeRuntime
from kubelet_trio.testing.fixtures import container_config, sandbox_config

SANDBOX = sandbox_config("web")


async def created(runtime: FakeRuntime) -> tuple[SandboxId, ContainerId]:
    runtime.images.present.add("web")
    sandbox = await runtime.run_pod_sandbox(SANDBOX)
    return sandbox, await runtime.create_container(
        sandbox, container_config(SANDBOX, "c", "web"), SANDBOX
    )


async def test_a_start_that_is_cut_ends_as_a_start_error(autojump_clock: MockClock) -> None:
    runtime = FakeRuntime()
    _, container = await created(runtime)
    runtime.latency = {"StartContainer": 1.0}
    with trio.move_on_after(0.2):
        await runtime.start_container(container)
    status, _ = await runtime.container_status(container)
    assert status.state == v1.ContainerState.CONTAINER_EXITED
    assert (status.reason, status.exit_code) == ("StartError", 128)
    assert "StartContainer" in runtime.violations[0]


async def test_a_start_whose_answer_is_not_awaited_runs(autojump_clock: MockClock) -> None:
    runtime = FakeRuntime()
    _, container = await created(runtime)
    runtime.latency = {"StartContainer": 1.0}
    with trio.move_on_after(0.8):
        await runtime.start_container(container)
    assert runtime.alive()
    assert [cut.call.name for cut in runtime.cuts] == ["StartContainer"]


async def test_a_sandbox_that_is_cut_is_half_made(autojump_clock: MockClock) -> None:
    runtime = FakeRuntime()
    runtime.latency = {"RunPodSandbox": 1.0}
    with trio.move_on_after(0.2):
        await runtime.run_pod_sandbox(SANDBOX)
    (sandbox,) = runtime.sandboxes.values()
    assert not sandbox.ready


async def test_a_command_that_is_cut_runs_on(autojump_clock: MockClock) -> None:
    runtime = FakeRuntime()
    _, container = await created(runtime)
    await runtime.start_container(container)
    runtime.on_exec = lambda _c, _cmd: FakeExec(takes=10)
    with trio.move_on_after(1):
        await runtime.exec_sync(container, ["true"], 0)
    assert runtime.containers[container].stray_commands == [["true"]]


async def test_a_call_may_be_given_up_after_some_seconds(autojump_clock: MockClock) -> None:
    runtime = FakeRuntime()
    _, container = await created(runtime)
    runtime.latency = {"StartContainer": 30.0}
    with trio.move_on_after(6):
        await runtime.start_container(container)
    assert runtime.cuts
    assert not runtime.violations


async def test_its_own_deadline_is_no_cut(autojump_clock: MockClock) -> None:
    runtime = FakeRuntime()
    _, container = await created(runtime)
    await runtime.start_container(container)
    runtime.on_exec = lambda _c, _cmd: FakeExec(takes=10)
    with pytest.raises(RuntimeTimeoutError):
        await runtime.exec_sync(container, ["true"], 1)
    assert not runtime.cuts
