"""The real pidfds, on real processes that are not our children's business."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest
import trio

from kubelet_trio.pleg import PidfdExitWaiter

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="no pidfds here")


def child() -> subprocess.Popen[bytes]:
    """Run a process that ends when its standard input does."""
    command = [sys.executable, "-S", "-c", "import sys; sys.stdin.read()"]
    return subprocess.Popen(command, stdin=subprocess.PIPE)


def open_files() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


async def test_the_end_of_a_process_is_noticed() -> None:
    with child() as process:
        with PidfdExitWaiter().open(process.pid) as watch:
            with trio.move_on_after(0.05) as waiting:
                await watch.wait_exited()
            assert waiting.cancelled_caught
            process.kill()
            with trio.fail_after(10):
                await watch.wait_exited()


async def test_a_closed_watch_leaves_no_file_open() -> None:
    with child() as process:
        before = open_files()
        with PidfdExitWaiter().open(process.pid):
            assert open_files() > before
        assert open_files() == before
        process.kill()


async def test_a_process_that_is_not_there_cannot_be_watched() -> None:
    with child() as process:
        process.kill()
    with pytest.raises(ProcessLookupError):
        PidfdExitWaiter().open(process.pid)


async def test_a_process_is_older_than_what_came_after_it_alone() -> None:
    before = time.time()
    with child() as process:
        with PidfdExitWaiter().open(process.pid) as watch:
            assert watch.is_older(time.time())
            assert not watch.is_older(before - 1)
            process.kill()
            process.wait()
            assert not watch.is_older(time.time())  # it is not known any more
