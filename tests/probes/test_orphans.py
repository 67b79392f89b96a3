"""What commands leave behind, with real processes."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import trio

from kubelet_trio.model import thread_offload
from kubelet_trio.probes import ProcOrphans


def leaving(test: str) -> list[str]:
    """Return a command that no other test runs: others may run beside this one."""
    return ["sh", "-c", "sleep 1000; true", f"{test}-{os.getpid()}"]


@contextmanager
def running(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command in a session of its own, as a runtime does."""
    process = subprocess.Popen(command, start_new_session=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def child_of(pid: int) -> int:
    """Wait for the only child of a process and return it."""
    asked = ["ps", "--ppid", str(pid), "-o", "pid="]
    deadline = time.monotonic() + 5
    while not (found := subprocess.run(asked, capture_output=True, check=False).stdout.split()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return int(found[0])


def is_running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def wait_gone(pid: int) -> None:
    deadline = time.monotonic() + 5
    while is_running(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)


async def test_what_a_killed_command_started_is_killed_too() -> None:
    orphans, twice = ProcOrphans(thread_offload), leaving("killed")
    with running(*twice) as command, running(*twice) as other:
        child, spared = child_of(command.pid), child_of(other.pid)
        leaders = await orphans.find(os.getpid(), twice, age=1)
        # Two runs of the same command cannot be told apart; only one's leader ends.
        assert leaders == {command.pid, other.pid}
        command.kill()
        command.wait()
        await orphans.kill(leaders)
        wait_gone(child)
        assert is_running(spared)
        assert is_running(other.pid)
        other.kill()
        other.wait()
        await orphans.kill(leaders)
        wait_gone(spared)


async def test_other_commands_and_older_ones_are_not_found() -> None:
    orphans, left = ProcOrphans(thread_offload), leaving("older")
    with running(*left) as old:
        child = child_of(old.pid)
        await trio.to_thread.run_sync(time.sleep, 1)
        with running("sleep", "1000"):
            assert await orphans.find(os.getpid(), left, age=0) == frozenset()
        old.kill()
        old.wait()
        assert is_running(child)
        await orphans.kill([old.pid])
        wait_gone(child)


async def test_a_process_that_is_gone_has_nothing() -> None:
    orphans = ProcOrphans(thread_offload)
    with running("true") as process:
        process.wait()
    assert await orphans.find(process.pid, leaving("gone"), age=1) == frozenset()
