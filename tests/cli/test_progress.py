"""What commands show of pulls and grace: on a terminal counted, elsewhere once."""

from __future__ import annotations

import datetime
import json
import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kubelet_trio.cli.main import cli
from kubelet_trio.cli.progress import Progress, pull_texts, under_way
from kubelet_trio.model import PodUid
from kubelet_trio.server import AgentStatus, PullInfo, RuntimeInfo
from tests.cli.running import served
from tests.server.fake_view import FakeView, make_pod

NOW = 1_000_000.0
PULL = {"uid": "u1", "container": "main", "image": "x:1", "since": NOW - 45, "is_queued": False}


class Pulling(FakeView):
    """An agent that pulls for 45 s already."""

    def status(self) -> AgentStatus:
        pull = PullInfo(PodUid("u1"), "web", "x:1", time.time() - 45, is_queued=False)
        return AgentStatus("node1", "/r", 0.0, RuntimeInfo("e"), pulls=(pull,))


@pytest.mark.parametrize(
    ("status", "timed", "texts"),
    [
        ({}, True, {}),
        ({"pulls": [{**PULL, "uid": "other"}]}, True, {}),
        ({"pulls": [PULL]}, True, {"main": 'Pulling image "x:1" for 45 s'}),
        ({"pulls": [PULL]}, False, {"main": 'Pulling image "x:1"'}),
        (
            {"pulls": [{**PULL, "is_queued": True}]},
            True,
            {"main": 'Waiting for other pulls to pull image "x:1" for 45 s'},
        ),
        # The clocks of the agent and of the command are one, but both are stepped.
        ({"pulls": [{**PULL, "since": NOW + 3}]}, True, {"main": 'Pulling image "x:1" for 0 s'}),
    ],
)
def test_a_pull_is_told_as_it_is_known(
    status: dict[str, Any], timed: bool, texts: dict[str, str]
) -> None:
    assert pull_texts(status, "u1", NOW, timed=timed) == texts


def test_what_is_under_way_is_one_line() -> None:
    until = datetime.datetime.fromtimestamp(NOW + 12, datetime.UTC).isoformat()
    ends = {"metadata": {"name": "mine", "uid": "u2", "deletionTimestamp": until}}
    over = {"metadata": {"name": "late", "deletionTimestamp": "1970-01-01T00:00:01Z"}}
    rests = {"metadata": {"name": "rests", "uid": "u3"}}
    pulls = {"metadata": {"name": "web", "uid": "u1"}}
    assert under_way({"pulls": [PULL]}, [ends, over, rests, pulls], NOW) == (
        'mine: 12 s of grace left; late: its grace is over; web: Pulling image "x:1" for 45 s'
    )
    assert under_way({}, [rests], NOW) == ""


def test_without_a_terminal_each_text_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress()
    for text in ("a", "a", "b\x1b[2J", ""):  # what a registry says does not reach the terminal raw
        progress.show(text)
    progress.clear()
    assert capsys.readouterr().err == "a\nb\\x1b[2J\n"


def test_describe_tells_of_a_pull(tmp_path: Path) -> None:
    with served(Pulling(make_pod()), tmp_path):
        told = CliRunner().invoke(cli, ["--root-dir", str(tmp_path), "describe", "pod", "web"])
    (line,) = [line for line in told.output.splitlines() if line.startswith("Progress:")]
    assert 'web: Pulling image "x:1" for 45 s' in line


def test_status_has_the_pulls(tmp_path: Path) -> None:
    with served(Pulling(make_pod()), tmp_path):
        told = CliRunner().invoke(cli, ["--root-dir", str(tmp_path), "status", "-o", "json"])
    (pull,) = json.loads(told.output)["pulls"]
    assert (pull["container"], pull["image"], pull["is_queued"]) == ("web", "x:1", False)


def test_a_watch_on_a_terminal_tells_below_its_lines(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    program = "from kubelet_trio.cli import main; main()"
    command = [sys.executable, "-c", program, "--root-dir", str(tmp_path), "pods", "-w"]
    with (
        served(Pulling(make_pod()), tmp_path),
        subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs) as watching,
    ):
        os.close(theirs)
        seen, end = b"", time.monotonic() + 30
        try:
            while b'Pulling image "x:1" for 4' not in seen:
                ready, _, _ = select.select([ours], [], [], max(0.0, end - time.monotonic()))
                assert ready, seen
                seen += os.read(ours, 4096)
        finally:
            watching.kill()
    os.close(ours)
    assert b"\r\x1b[Kweb-node1: Pulling" in seen
    assert b"NAMESPACE" in seen


def test_a_watch_elsewhere_has_its_lines_alone(tmp_path: Path) -> None:
    program = "from kubelet_trio.cli import main; main()"
    command = [sys.executable, "-c", program, "--root-dir", str(tmp_path), "pods", "-w"]
    with (
        served(Pulling(make_pod()), tmp_path),
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as watching,
    ):
        assert watching.stdout is not None
        assert watching.stdout.readline().startswith("NAMESPACE")
        assert "web-node1" in watching.stdout.readline()
        watching.kill()
        assert watching.communicate()[1] == ""
