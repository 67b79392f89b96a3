"""The agent's own process and those of the root cgroup, on cgroups in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from kubelet_trio.cgroups import CgroupError, CgroupHost
from kubelet_trio.host import OwnProcess, SystemProcesses
from kubelet_trio.host import processes as module
from kubelet_trio.model import inline_offload

HOST = CgroupHost(2, {"": Path("/none")})


@dataclass
class Kernel:
    """Which cgroup each process is in; one process is in one."""

    cgroup_of: dict[int, str] = field(default_factory=dict)
    refused: frozenset[int] = frozenset()
    on_move: Callable[[int], None] = lambda _: None

    def move_process(self, host: CgroupHost, path: str, pid: int) -> None:
        if pid in self.refused:
            raise CgroupError(f"cannot write {pid} to {path}")
        self.cgroup_of[pid] = path
        self.on_move(pid)

    def is_in_cgroup(self, host: CgroupHost, path: str, pid: int, proc: Path) -> bool:
        return self.cgroup_of[pid] == path

    def user_processes(self, host: CgroupHost, path: str, proc: Path) -> list[int]:
        return [pid for pid, where in self.cgroup_of.items() if where == path and pid != 1]


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    kernel = Kernel()
    for name in ("move_process", "is_in_cgroup", "user_processes"):
        monkeypatch.setattr(module, name, getattr(kernel, name))
    return kernel


@asynccontextmanager
async def running(task: OwnProcess | SystemProcesses) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        await nursery.start(task.run)
        await trio.sleep(1)
        yield
        nursery.cancel_scope.cancel()


def own(proc: Path, cgroup: str = "") -> OwnProcess:
    (proc / "7").mkdir()
    (proc / "7/oom_score_adj").write_text("0")
    return OwnProcess(-999, cgroup, lambda: HOST, inline_offload, proc, pid=7)


async def test_the_agents_score_is_set_again(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with running(own(tmp_path)):
        score = tmp_path / "7/oom_score_adj"
        assert score.read_text() == "-999"
        score.write_text("0")
        await trio.sleep(301)
        assert score.read_text() == "-999"


async def test_the_agent_goes_back_into_its_cgroup(
    tmp_path: Path, kernel: Kernel, autojump_clock: MockClock
) -> None:
    kernel.cgroup_of = {7: "/system.slice"}
    async with running(own(tmp_path, "/kubelet")):
        assert kernel.cgroup_of == {7: "/kubelet"}
        kernel.cgroup_of[7] = "/system.slice"
        await trio.sleep(61)
        assert kernel.cgroup_of == {7: "/kubelet"}


async def test_without_a_cgroup_the_agent_stays_where_it_is(
    tmp_path: Path, kernel: Kernel, autojump_clock: MockClock
) -> None:
    kernel.cgroup_of = {7: "/system.slice"}
    async with running(own(tmp_path)):
        await trio.sleep(1000)
    assert kernel.cgroup_of == {7: "/system.slice"}


async def test_a_cgroup_that_cannot_be_entered_is_told_once_and_the_score_is_set(
    tmp_path: Path, kernel: Kernel, autojump_clock: MockClock
) -> None:
    kernel.cgroup_of, kernel.refused = {7: "/"}, frozenset({7})
    with capture_logs() as logs:
        async with running(own(tmp_path, "/kubelet")):
            await trio.sleep(600)
    assert [line["event"] for line in logs] == ["process.not_moved"]
    assert (tmp_path / "7/oom_score_adj").read_text() == "-999"


async def test_a_score_that_may_not_be_set_keeps_nobody_from_the_cgroup(
    tmp_path: Path, kernel: Kernel, autojump_clock: MockClock
) -> None:
    kernel.cgroup_of = {7: "/"}
    task = own(tmp_path, "/kubelet")
    score = tmp_path / "7/oom_score_adj"
    with capture_logs() as logs:
        async with running(task):
            score.unlink()
            score.mkdir()  # what cannot be written, for root as well
            kernel.cgroup_of[7] = "/"
            await trio.sleep(600)
    assert kernel.cgroup_of == {7: "/kubelet"}
    told = [line["event"] for line in logs if line["log_level"] == "warning"]
    assert told == ["process.oom_score_adj"]


def system(kernel: Kernel) -> SystemProcesses:
    return SystemProcesses("/system", lambda: HOST, inline_offload)


async def test_processes_leave_the_root_cgroup_but_not_others(
    kernel: Kernel, autojump_clock: MockClock
) -> None:
    kernel.cgroup_of = {1: "/", 30: "/", 31: "/", 40: "/kubepods/pod1"}
    async with running(system(kernel)):
        assert kernel.cgroup_of == {1: "/", 30: "/system", 31: "/system", 40: "/kubepods/pod1"}
        kernel.cgroup_of[50] = "/"
        await trio.sleep(61)
        assert kernel.cgroup_of[50] == "/system"


async def test_a_child_forked_meanwhile_is_moved_as_well(
    kernel: Kernel, autojump_clock: MockClock
) -> None:
    def fork(pid: int) -> None:
        if pid == 30:
            kernel.cgroup_of[31] = "/"

    kernel.cgroup_of, kernel.on_move = {30: "/"}, fork
    async with running(system(kernel)):
        assert kernel.cgroup_of == {30: "/system", 31: "/system"}


async def test_one_process_that_cannot_be_moved_holds_up_no_other(
    kernel: Kernel, autojump_clock: MockClock
) -> None:
    kernel.cgroup_of, kernel.refused = {30: "/", 31: "/"}, frozenset({30})
    with capture_logs() as logs:
        async with running(system(kernel)):
            await trio.sleep(600)
    assert kernel.cgroup_of == {30: "/", 31: "/system"}
    assert [line["event"] for line in logs] == ["system_cgroups.not_moved"]
