"""Files of a real cgroup that stay open say what the kernel says, whatever its processes do."""

from __future__ import annotations

import os
import signal
import subprocess
import uuid
from collections.abc import Collection, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from kubelet_trio.cgroups import cgroup_host
from kubelet_trio.stats import CgroupUsage, Host
from kubelet_trio.stats.cgroup_files import CgroupFiles
from kubelet_trio.stats.cgroup_parse import ALL_FILES_V1
from kubelet_trio.stats.process_files import Processes
from kubelet_trio.stats.read import read_host
from tests.harness import eventually

ROOT = f"/kubelet-trio-test-{uuid.uuid4().hex[:8]}"
INNER = f"{ROOT}/container"


@pytest.fixture
def host() -> Iterator[Host]:
    machine = cgroup_host()
    wanted = ("",) if machine.version == 2 else tuple(ALL_FILES_V1)
    mounts = {name: str(path) for name, path in machine.mounts.items() if name in wanted}
    made: list[str] = []
    try:
        for mount in dict.fromkeys(mounts.values()):
            for path in (ROOT, INNER):
                os.mkdir(mount + path)
                made.append(mount + path)
            if machine.version == 2:
                Path(f"{mount}{ROOT}/cgroup.subtree_control").write_text("+memory +pids")
    except OSError as exc:
        remove(made)
        pytest.skip(f"cgroups cannot be made here: {exc}")
    yield Host(machine.version, mounts)
    remove(made)


def remove(made: list[str]) -> None:
    for path in reversed(made):
        os.rmdir(path)


def enter(host: Host, process: subprocess.Popen[bytes]) -> None:
    for mount in dict.fromkeys(host.mounts.values()):
        Path(f"{mount}{INNER}/cgroup.procs").write_text(str(process.pid))


def read(host: Host, files: CgroupFiles | None = None) -> tuple[CgroupUsage, Processes]:
    found = read_host(host, [ROOT], everything=True, now=1.0, files=files)
    return found.cgroups[INNER], found.processes.get(INNER, Processes())


def wait_same(
    host: Host,
    kept: CgroupFiles,
    processes: Collection[subprocess.Popen[bytes]],
    state: str = "S",
) -> None:
    """Wait until these are what the cgroup has, in that state, and a reading shows it.

    Pressure goes on counting for a moment: but what is not seen at all stays unseen.
    """
    pids = {process.pid for process in processes}
    wanted = (pids, {state} if pids else set[str]())

    def is_same() -> bool:
        now = read(host)
        return now == read(host, kept) and (set(now[0].pids), set(now[1].states)) == wanted

    eventually(is_same, within=30, what=f"a reading shows {wanted}")


def test_what_processes_do_is_in_the_next_reading(host: Host) -> None:
    with (
        closing(CgroupFiles(host, 1000)) as kept,
        subprocess.Popen(["sleep", "1000"]) as first,
        subprocess.Popen(["sleep", "1000"]) as second,
    ):
        try:
            for _ in range(3):
                wait_same(host, kept, ())
            enter(host, first)
            for _ in range(3):
                wait_same(host, kept, [first])
            # It sleeps, and does not run for being moved.
            enter(host, second)
            assert set(read(host, kept)[0].pids) == {first.pid, second.pid}
            for signal_, state in ((signal.SIGSTOP, "T"), (signal.SIGCONT, "S")):
                for process in (first, second):
                    process.send_signal(signal_)
                wait_same(host, kept, [first, second], state)
            second.kill()
            second.wait()
            wait_same(host, kept, [first])
        finally:
            for process in (first, second):
                process.kill()
                process.wait()
        wait_same(host, kept, ())
