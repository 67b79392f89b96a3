"""What a container has started ends with it, however it hides, and with nothing else."""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path

import pytest
import trio

from kubelet_trio.cri import RuntimeCallError, v1
from kubelet_trio.cri.process import process_state
from kubelet_trio.cri.process.launcher import SHIM_LOG, Launcher
from kubelet_trio.model import ContainerId
from tests.conformance.cases import FOREVER, Box, Program, eventually, exits, wait_exited
from tests.cri.process.conftest import ProcessCase
from tests.cri.process.processes import command_line, parent, processes_at, sleepers

RUNNING = v1.ContainerState.CONTAINER_RUNNING


def sleeps(number: int) -> str:
    """A number of seconds by which a test knows its own processes."""
    return str(1_000_000 + os.getpid() * 10 + number)


def hiding(seconds: str, then: str) -> Program:
    """A container with descendants in other process groups, sessions and under no parent."""
    return Program(
        f"setsid sh -c 'sleep {seconds}; true' & (setsid sleep {seconds} &) ; "
        f"sh -c '(trap \"\" TERM HUP INT; sleep {seconds}; true) &'; {then}"
    )


async def started(seconds: str) -> None:
    """Wait until all three sleeps of `hiding` are there."""
    await eventually(lambda: len(sleepers(seconds)) >= 3)


@pytest.mark.parametrize("grace", [0, 5])
async def test_a_stop_ends_every_descendant(case: ProcessCase, box: Box, grace: int) -> None:
    seconds = sleeps(1)
    container_id = await box.start(hiding(seconds, FOREVER.script))
    await started(seconds)
    await case.runtime.stop_container(container_id, grace)
    assert sleepers(seconds) == []
    code = (await wait_exited(case.runtime, container_id)).exit_code
    assert code == (143 if grace else 137)


async def test_descendants_end_with_the_main_process(case: ProcessCase, box: Box) -> None:
    seconds = sleeps(2)
    wait_for_all = f"while [ $(pgrep -fc 'sleep {seconds}') -lt 3 ]; do sleep 0.05; done"
    container_id = await box.start(hiding(seconds, f"{wait_for_all}; exit 4"))
    assert (await case.wait_exited(container_id)).exit_code == 4
    assert sleepers(seconds) == []


async def test_removing_a_sandbox_ends_everything_in_it(case: ProcessCase, box: Box) -> None:
    seconds = sleeps(3)
    await box.start(hiding(seconds, FOREVER.script))
    await started(seconds)
    await case.runtime.remove_pod_sandbox(box.id)
    assert sleepers(seconds) == []
    assert [p for p in processes_at(case.logs) if "sleep" in p] == []


async def test_a_command_that_is_left_takes_its_descendants_along(
    case: ProcessCase, box: Box
) -> None:
    seconds = sleeps(4)
    container_id = await box.start(FOREVER)
    command = hiding(seconds, f"sleep {seconds}").command
    async with case.runtime.open_exec(container_id, command):
        await started(seconds)
    assert sleepers(seconds) == []


async def test_what_a_command_leaves_running_ends_with_the_container(
    case: ProcessCase, box: Box
) -> None:
    seconds = sleeps(5)
    container_id = await box.start(FOREVER)
    command = ["sh", "-c", f"setsid sleep {seconds} >/dev/null 2>&1 & exit 0"]
    assert (await case.runtime.exec_sync(container_id, command, 10)).exit_code == 0
    await eventually(lambda: len(sleepers(seconds)) == 1)
    await case.runtime.stop_container(container_id, 5)
    assert sleepers(seconds) == []


async def test_a_container_has_a_session_and_a_group_of_its_own(
    case: ProcessCase, box: Box
) -> None:
    _, pid = await case.runtime.container_status(await box.start(FOREVER), verbose=True)
    assert (os.getsid(pid), os.getpgid(pid)) == (pid, pid)
    assert os.getsid(parent(pid)) not in (pid, os.getsid(0))


async def test_containers_outlive_the_runtime_and_are_found_again(
    case: ProcessCase, box: Box
) -> None:
    seconds = sleeps(6)
    container_id = await box.start(hiding(seconds, FOREVER.script))
    await started(seconds)
    known = await case.runtime.container_status(container_id, verbose=True)
    before = set(sleepers(seconds))
    async with case.open_client() as first:
        assert await first.container_status(container_id, verbose=True) == known
    async with case.open_client() as second:
        assert await second.container_status(container_id, verbose=True) == known
        assert set(sleepers(seconds)) == before
        await second.stop_container(container_id, 5)
    assert sleepers(seconds) == []


async def test_nothing_runs_before_the_first_start_nor_after_the_runtime(
    case: ProcessCase, box: Box
) -> None:
    await box.create(exits(0), "waiting")
    assert processes_at(case.logs / "root") == []
    async with case.open_client() as other:
        listed = await other.list_containers()
        await other.start_container(ContainerId(next(iter(listed.entries))))
        assert len(processes_at(case.logs / "root")) >= 1
    await eventually(lambda: processes_at(case.logs / "root") == [])


async def test_a_default_timeout_of_the_program_does_not_end_the_nursery(
    case: ProcessCase, box: Box
) -> None:
    socket.setdefaulttimeout(1.0)  # for new sockets, as some programs around a kubelet do
    try:
        await case.wait_exited(await box.start(exits(0), "first"))
    finally:
        socket.setdefaulttimeout(None)
    (log,) = case.logs.rglob(SHIM_LOG)
    assert log.read_text() == ""


async def test_a_dead_nursery_is_replaced(case: ProcessCase, box: Box) -> None:
    await case.wait_exited(await box.start(exits(0), "first"))
    # A shim is about to go when it has told of its container's end.
    await eventually(lambda: len(processes_at(case.logs / "root")) == 1)
    (nursery,) = (int(p.split(":")[0]) for p in processes_at(case.logs / "root"))
    os.kill(nursery, signal.SIGKILL)
    second = await box.create(exits(0), "second")
    with trio.fail_after(10):
        while True:
            try:
                await case.runtime.start_container(second)
                break
            except RuntimeCallError:
                await trio.sleep(0.05)
    assert (await case.wait_exited(second)).exit_code == 0


async def test_a_killed_shim_takes_its_container_along(case: ProcessCase, box: Box) -> None:
    seconds = sleeps(7)
    container_id = await box.start(hiding(seconds, FOREVER.script))
    await started(seconds)
    _, pid = await case.runtime.container_status(container_id, verbose=True)
    os.kill(parent(pid), signal.SIGKILL)
    status = await case.wait_exited(container_id)
    assert (status.exit_code, status.reason) == (255, "Unknown")
    assert command_line(pid) == ""
    assert sleepers(seconds) == []


async def test_a_terminated_shim_passes_the_signal_on(case: ProcessCase, box: Box) -> None:
    container_id = await box.start(Program("trap 'exit 9' TERM; echo up; sleep 1000 & wait $!"))
    status, pid = await case.runtime.container_status(container_id, verbose=True)
    await eventually(lambda: b"up" in Path(status.log_path).read_bytes())
    os.kill(parent(pid), signal.SIGTERM)
    assert (await case.wait_exited(container_id)).exit_code == 9


async def test_a_shim_that_does_not_listen_does_not_hold_up_a_stop(
    case: ProcessCase, box: Box
) -> None:
    container_id = await box.start(FOREVER)
    (control,) = (case.logs / "root").rglob("control")
    control.unlink()
    await case.runtime.stop_container(container_id, 1)
    status = await case.wait_exited(container_id)
    assert (status.exit_code, status.reason) == (255, "Unknown")


@pytest.mark.parametrize("delay_ms", [0, 1, 2, 3, 5, 8, 12])
async def test_a_start_that_was_cancelled_leaves_nothing_that_is_not_known(
    case: ProcessCase, box: Box, delay_ms: int
) -> None:
    seconds = sleeps(9)
    await box.start(FOREVER, "warm-up")
    container_id = await box.create(hiding(seconds, FOREVER.script))
    with trio.move_on_after(delay_ms / 1000):
        await case.runtime.start_container(container_id)
    await case.runtime.remove_container(container_id)
    assert sleepers(seconds) == []


async def test_a_removed_container_does_not_start_any_more(case: ProcessCase, box: Box) -> None:
    container_id = await box.create(FOREVER)
    (directory,) = (case.logs / "root" / "process-runtime").glob(f"*/{container_id}")
    assert process_state.forbid_start(directory)
    assert not process_state.forbid_start(directory)
    # As for a start that was sent before and is carried out only now.
    launcher = Launcher(sys.executable, directory.parent.parent)
    async with trio.open_nursery() as nursery:
        await nursery.start(launcher.run)
        with pytest.raises(RuntimeCallError, match=r"the shim died.*shim\.log"):
            await launcher.start(directory)
        nursery.cancel_scope.cancel()
    assert "FileExistsError" in (directory.parent.parent / "shim.log").read_text()


async def test_ten_containers_come_and_go_together(case: ProcessCase, box: Box) -> None:
    seconds = sleeps(8)
    containers: list[ContainerId] = []

    async def start(number: int) -> None:
        containers.append(await box.start(hiding(seconds, FOREVER.script), f"c{number}"))

    async with trio.open_nursery() as starts:
        for number in range(10):
            starts.start_soon(start, number)
    await eventually(lambda: len(sleepers(seconds)) >= 30)
    async with trio.open_nursery() as stops:
        for container_id in containers:
            stops.start_soon(case.runtime.stop_container, container_id, 5)
    assert sleepers(seconds) == []
