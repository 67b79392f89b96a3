"""The real pidfds, on real processes that are not our children's business."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from kubelet_trio.model import ContainerId
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


@pytest.fixture
def init() -> Iterator[int]:
    """Return the PID of the first process of a PID namespace."""
    command = ["unshare", "--pid", "--fork", sys.executable, "-S", "-c", "import sys; print(1)"]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no PID namespaces here")
    waits = "import sys; print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [*command[:-1], waits], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
        yield int(children)
        assert process.stdin is not None
        process.stdin.close()


def in_cgroup_of(pid: int) -> ContainerId:
    """Return an id that names a process's cgroup, as that of a container does."""
    return ContainerId(Path(f"/proc/{pid}/cgroup").read_text().split()[0])


async def test_with_the_first_process_of_its_namespace_a_container_is_known_to_end(
    init: int,
) -> None:
    with PidfdExitWaiter().open(init) as watch:
        assert watch.is_whole(in_cgroup_of(init))
        assert not watch.is_whole(ContainerId("0123456789abcdef"))  # another container's cgroup


async def test_with_a_process_of_a_shared_namespace_a_container_is_not_known_to_end() -> None:
    with child() as process:
        with PidfdExitWaiter().open(process.pid) as watch:
            assert not watch.is_whole(in_cgroup_of(process.pid))
            process.kill()
            process.wait()
            assert not watch.is_whole(ContainerId("0"))
