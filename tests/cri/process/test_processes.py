"""Signals reach the process that was meant, and none that has its number by now."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from kubelet_trio.cri.process.shim.processes import Process, process_stat


@pytest.fixture
def sleepers() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Two processes, which started at different ticks of the kernel's clock."""
    with ExitStack() as stack:
        started: list[subprocess.Popen[bytes]] = []
        while len({start_time(process) for process in started}) < 2:
            started.append(stack.enter_context(subprocess.Popen(["sleep", "60"])))
            stack.callback(started[-1].kill)
        yield [started[0], started[-1]]


def start_time(process: subprocess.Popen[bytes]) -> bytes:
    stat = process_stat(process.pid)
    assert stat is not None
    return stat[19]


@pytest.fixture(params=[None, errno.ENOSYS, errno.EMFILE], ids=["pidfd", "old kernel", "full"])
def has_pidfd(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    if request.param is not None:

        def refuse(_pid: int) -> int:
            raise OSError(request.param, os.strerror(request.param))

        monkeypatch.setattr(os, "pidfd_open", refuse)
    return request.param is None


@pytest.mark.usefixtures("has_pidfd")
def test_a_child_is_ones_own_and_is_killed(sleepers: list[subprocess.Popen[bytes]]) -> None:
    first, second = sleepers
    process = Process(first.pid)
    assert process.comes_of(os.getpid())
    assert process.comes_of(os.getppid())
    assert not process.comes_of(second.pid)
    process.send(signal.SIGKILL)
    assert first.wait(5) == -signal.SIGKILL
    process.send(signal.SIGKILL)
    assert not process.comes_of(os.getpid())
    process.close()


@pytest.mark.usefixtures("has_pidfd")
def test_who_gets_the_number_of_one_that_ended_is_spared(
    sleepers: list[subprocess.Popen[bytes]],
) -> None:
    first, second = sleepers
    process = Process(first.pid)
    first.kill()
    first.wait(5)
    process.pid = second.pid  # the kernel gave the number to another
    process.send(signal.SIGKILL)
    with pytest.raises(subprocess.TimeoutExpired):
        second.wait(0.1)
    process.close()


_STALE = """
import os, sys
from kubelet_trio.cri.process.shim import processes
listings = [{os.getpid(): [int(sys.argv[1])]}]
processes.children_by_parent = lambda: listings.pop() if listings else {}
processes.kill_descendants()
"""


def test_a_listing_that_is_out_of_date_harms_nobody(
    sleepers: list[subprocess.Popen[bytes]],
) -> None:
    """What it calls a child of the shim is by now somebody else's process."""
    stranger = sleepers[0]
    subprocess.run([sys.executable, "-c", _STALE, str(stranger.pid)], check=True)
    with pytest.raises(subprocess.TimeoutExpired):
        stranger.wait(0.1)
