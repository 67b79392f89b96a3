"""A root directory whose disk is full or read-only: what runs goes on, and all is made up for."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.faults.bed import Bed, MakeBed
from tests.harness import eventually


@pytest.fixture
def small(make_bed: MakeBed) -> Iterator[Bed]:
    """A bed whose agent has its root directory on a disk of 16 MB."""
    if os.getuid() != 0:
        pytest.skip("mounts need root")
    bed = make_bed()
    root = bed.agent.root
    root.mkdir(parents=True)
    options = ["-t", "tmpfs", "-o", "size=16m", "tmpfs"]
    if subprocess.run(["mount", *options, str(root)], check=False).returncode:
        pytest.skip("this machine lets nobody mount a tmpfs")
    try:
        bed.agent.start()
        bed.agent.put(bed.pod("steady"))
        bed.agent.wait_ready("steady")
        yield bed
    finally:
        bed.close()
        # Lazily: a process that has just been killed may hold it for a moment.
        subprocess.run(["umount", "--lazy", str(root)], check=False)


def fill(root: Path) -> Path:
    """Take what is left of a disk and return the file that has it."""
    path = root / "ballast"
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(b"\0" * 65536):
            pass
    return path


def test_a_full_disk_stops_nothing_and_is_made_up_for(small: Bed) -> None:
    steady = small.pid_of("steady")
    ballast = fill(small.agent.root)
    small.agent.put(small.pod("late"))
    os.kill(steady, signal.SIGKILL)
    # The crashed container may have to wait for space; the agent does not fall over.
    eventually(lambda: "No space left" in small.agent.output.read_text(), within=60)
    assert small.agent.is_running
    assert small.agent.healthz()[0] == 200
    ballast.unlink()
    small.wait_runs({"steady": 0, "late": 0}, within=180)


def test_an_agent_killed_on_a_full_disk_starts_and_keeps_what_runs(small: Bed) -> None:
    steady = small.pid_of("steady")
    ballast = fill(small.agent.root)
    small.agent.kill()
    small.agent.start()
    small.agent.wait_ready("steady")
    assert small.pid_of("steady") == steady
    ballast.unlink()
    small.agent.put(small.pod("late"))
    small.wait_runs({"steady": 0, "late": 0}, within=180)
    assert small.pid_of("steady") == steady


def test_a_read_only_disk_stops_nothing(small: Bed) -> None:
    steady = small.pid_of("steady")
    pods = str(small.agent.root / "pods")
    # Over itself: a disk that somebody writes to at this moment cannot be made read-only.
    subprocess.run(["mount", "--bind", pods, pods], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", pods], check=True)
        small.agent.put(small.pod("late"))
        eventually(lambda: "Read-only file system" in small.agent.output.read_text(), within=60)
        assert small.agent.is_running
        assert small.agent.healthz()[0] == 200
        assert small.pid_of("steady") == steady
    finally:
        subprocess.run(["umount", "--lazy", pods], check=True)
    small.wait_runs({"steady": 0, "late": 0}, within=180)
    assert small.pid_of("steady") == steady


def test_a_pod_that_is_deleted_on_a_full_disk_stops(small: Bed) -> None:
    ballast = fill(small.agent.root)
    small.agent.drop("steady")
    small.wait_runs({}, within=60)
    assert "No space left" in small.agent.output.read_text()
    ballast.unlink()
    small.agent.wait_gone("steady")


def test_a_pod_that_is_deleted_on_a_read_only_disk_stops(small: Bed) -> None:
    pods = str(small.agent.root / "pods")
    subprocess.run(["mount", "--bind", pods, pods], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", pods], check=True)
        small.agent.drop("steady")
        small.wait_runs({}, within=60)
    finally:
        subprocess.run(["umount", "--lazy", pods], check=True)
    small.agent.wait_gone("steady")
