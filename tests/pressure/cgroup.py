"""A real memory cgroup of a test's own, and processes in it."""

from __future__ import annotations

import os
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from kubelet_trio.cgroups import cgroup_host


@contextmanager
def memory_cgroup(name: str = "container") -> Iterator[Path]:
    """Make a cgroup of version 1, or skip the test. It is removed with what runs in it."""
    host = cgroup_host()
    mount = host.mounts.get("memory") if host.version == 1 else None
    if mount is None or not os.access(mount / "cgroup.procs", os.W_OK):
        pytest.skip("no memory cgroup of version 1 may be made here")
    directory = mount / f"kt-{uuid.uuid4().hex[:8]}" / name
    directory.mkdir(parents=True)
    try:
        yield directory
    finally:
        for path in (directory, directory.parent):
            _remove(path)


def _remove(path: Path) -> None:
    """Remove a cgroup as soon as the killed processes in it are gone."""
    deadline = time.monotonic() + 30
    while True:
        try:
            path.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return


@contextmanager
def shell_in(cgroup: Path, command: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a shell in a cgroup: it says so in a line, and runs `command` when a line is written."""
    script = f'echo $$ > "{cgroup}/cgroup.procs"; echo; read go; {command}'
    pipe = subprocess.PIPE
    with subprocess.Popen(
        ["sh", "-c", script], stdin=pipe, stdout=pipe, start_new_session=True
    ) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, 9)


def go(process: subprocess.Popen[bytes]) -> None:
    """Let a shell begin."""
    assert process.stdin is not None
    process.stdin.write(b"go\n")
    process.stdin.flush()
