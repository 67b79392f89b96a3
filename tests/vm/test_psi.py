"""The kernel's pressure triggers, on a machine and a cgroup that really stall for memory."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from kubelet_trio.cgroups import CgroupHost
from kubelet_trio.pressure.thresholds import ALLOCATABLE_MEMORY, MEMORY
from kubelet_trio.pressure.wakes import KernelMemoryWake
from tests.harness.leftovers import CGROUPS

SLICE = "kttestpsi.slice"


@contextmanager
def stalls() -> Iterator[None]:
    """Have a process of a cgroup stall for memory: it wants more than `MemoryHigh`."""
    command = ["systemd-run", "--quiet", "--scope", f"--slice={SLICE}", "-p", "MemoryHigh=8M"]
    hog = subprocess.Popen([*command, "sh", "-c", "head -c 64m /dev/zero | tail | sleep 600"])
    try:
        yield
    finally:
        subprocess.run(["systemctl", "kill", "--signal=KILL", SLICE], check=False)
        hog.wait()


@pytest.mark.parametrize("signal", [MEMORY, ALLOCATABLE_MEMORY])
async def test_a_stall_wakes_whoever_waits_for_pressure(signal: str) -> None:
    subprocess.run(["systemctl", "start", SLICE], check=True)  # noqa: ASYNC221  # at once
    wake = KernelMemoryWake(CgroupHost(2, {"": CGROUPS}), lambda: 1 << 32, lambda: f"/{SLICE}")
    with trio.move_on_after(3) as calm:
        await wake.wait({signal: 1 << 20})
    assert calm.cancelled_caught, "woken although nothing stalls"
    with stalls(), trio.fail_after(120):
        await wake.wait({signal: 1 << 20})
    assert not wake.is_logged, "the kernel refused the trigger"
    assert Path("/proc/pressure/memory").exists()
