"""The example programs run as they are, and say what they are to say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples" / "embedding"


def run(program: str, *arguments: str) -> list[str]:
    """Run a program to its end and return the lines of its own, without the log."""
    environment = {**os.environ, "PYTHONWARNINGS": "error"}
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / program), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    return [line for line in done.stdout.splitlines() if not line.startswith("20")]


def test_the_gateway() -> None:
    assert run("gateway.py") == [f"the service ran as user {os.getuid()}, and is gone: True"]


def test_the_jobs() -> None:
    lines = run("jobs.py", "4", "2")
    assert sorted(lines) == [
        "Succeeded after 0 restarts: job 1: the square is 1",
        "Succeeded after 0 restarts: job 2: the square is 4",
        "Succeeded after 0 restarts: job 4: the square is 16",
        "Succeeded after 1 restarts: job 3: the square is 9",
    ]


def test_the_keeper_finds_its_pods_again(tmp_path: Path) -> None:
    first = run("keeper.py", str(tmp_path), "up")
    try:
        assert [line.split()[0] for line in first] == ["clock", "counter"]
        assert run("keeper.py", str(tmp_path), "up") == first
        watched = run("keeper.py", str(tmp_path), "watch")
        assert {"ADDED clock Running", "ADDED counter Running"} <= set(watched)
    finally:
        assert run("keeper.py", str(tmp_path), "down") == ["clock is gone", "counter is gone"]
    assert not list((tmp_path / "pods").iterdir())


def test_the_gateways_own_test() -> None:
    plugin = ["-p", "kubelet_trio.testing.pytest_plugin"]
    options = ["-q", "-c", "/dev/null", "--rootdir", str(EXAMPLES), "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *plugin, *options, str(EXAMPLES / "test_gateway.py")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "3 passed" in done.stdout, done.stdout + done.stderr
