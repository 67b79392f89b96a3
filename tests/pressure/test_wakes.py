"""The kernel wakes who waits for memory to run short: real cgroups, real pressure."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio
import trio.testing

from kubelet_trio.cgroups import CgroupHost
from kubelet_trio.pressure import KernelMemoryWake
from tests.pressure.cgroup import go, memory_cgroup, shell_in

MI = 1 << 20
PSI = Path("/proc/pressure/memory")
HOLD = "head -c 64m /dev/zero | tail | sleep 1000"  # holds what it has read


@pytest.mark.parametrize("signal", ["memory.available", "allocatableMemory.available"])
async def test_a_threshold_of_version_1_that_is_crossed_wakes(signal: str) -> None:
    with memory_cgroup("kubepods") as cgroup:
        (cgroup / "memory.limit_in_bytes").write_text(str(200 * MI))
        # What is the machine's here is the parent: nobody else is in it.
        host = CgroupHost(1, {"memory": cgroup.parent})
        wake = KernelMemoryWake(host, lambda: 200 * MI, lambda: "/kubepods")
        with shell_in(cgroup, HOLD) as process:
            with trio.move_on_after(0.5) as early:
                await wake.wait({signal: 160 * MI})
            assert early.cancelled_caught
            with trio.fail_after(60):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(wake.wait, {signal: 160 * MI})
                    await trio.testing.wait_all_tasks_blocked()
                    go(process)
            used = int((cgroup / "memory.usage_in_bytes").read_text())
            assert used >= 20 * MI  # it is counted in batches
    assert not wake.is_logged


def _has_triggers() -> bool:
    try:
        fd = os.open(PSI, os.O_RDWR)
    except OSError:
        return False
    os.close(fd)
    return True


needs_triggers = pytest.mark.skipif(not _has_triggers(), reason="this kernel tells of no pressure")


@needs_triggers
async def test_the_kernel_takes_the_trigger(tmp_path: Path) -> None:
    wake = KernelMemoryWake(CgroupHost(2, {"": tmp_path}), lambda: 1 << 34)
    with trio.move_on_after(0.1):
        await wake.wait({"memory.available": 100 * MI})
    assert not wake.is_logged


@needs_triggers
async def test_tasks_that_stall_for_memory_wake_on_version_2(tmp_path: Path) -> None:
    # Reads more than it may hold, again and again: each time other pages must go first. All of the
    # file is a hole, so that it waits for memory alone, not for a disk that is busy.
    holes = tmp_path / "holes"
    holes.touch()
    os.truncate(holes, 48 * MI)
    with memory_cgroup() as cgroup:
        (cgroup / "memory.limit_in_bytes").write_text(str(16 * MI))
        wake = KernelMemoryWake(
            CgroupHost(2, {"": tmp_path}), lambda: 1 << 34, trigger=b"some 1 2000000\0"
        )
        with shell_in(cgroup, f'while :; do cat "{holes}"; done > /dev/null') as process:
            go(process)
            with trio.fail_after(60):
                await wake.wait({"memory.available": 100 * MI})
    assert not wake.is_logged


async def test_a_kernel_that_does_not_tell_leaves_it_to_the_loop(tmp_path: Path) -> None:
    for host in (CgroupHost(2, {"": tmp_path}), CgroupHost(1, {})):
        wake = KernelMemoryWake(host, lambda: 1 << 30, psi=tmp_path / "none")
        with trio.move_on_after(0.1) as waited:
            await wake.wait({"memory.available": 1})
        assert waited.cancelled_caught
        assert wake.is_logged
