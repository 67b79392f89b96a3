"""What Ctrl-C tells of pods that end with the agent, and what a second one does."""

from __future__ import annotations

import datetime
import io
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import trio
from lightkube.models.core_v1 import Pod, PodStatus
from lightkube.models.meta_v1 import ObjectMeta
from trio.testing import MockClock

from kubelet_trio.daemon.ending import end_pods, ending_line
from tests.agent.node import Node, make_pod

NOW = 1_000_000.0


def ending(name: str, left: float | None, phase: str = "Running") -> Pod:
    until = None if left is None else datetime.datetime.fromtimestamp(NOW + left, datetime.UTC)
    meta = ObjectMeta(name=name, deletionTimestamp=until)
    return Pod(metadata=meta, status=PodStatus(phase=phase))


@pytest.mark.parametrize(
    ("pods", "line"),
    [
        ([ending("mine", 12)], "ending 1 pod: mine: 12 s of grace left (Ctrl-C again to kill)"),
        (
            [ending("a", 0), ending("b", 3), ending("c", 20, "Succeeded")],
            "ending 3 pods: b: 3 s of grace left, c: its parts are being removed, "
            "a: its parts are being removed (Ctrl-C again to kill)",
        ),
        (
            [ending(f"p{n}", n) for n in range(1, 6)],
            "ending 5 pods: p5: 5 s of grace left, p4: 4 s of grace left, p3: 3 s of grace left, "
            "2 more (Ctrl-C again to kill)",
        ),
        (
            [ending("new", None)],
            "ending 1 pod: new: its parts are being removed (Ctrl-C again to kill)",
        ),
    ],
)
def test_a_line_says_what_is_left(pods: list[Pod], line: str) -> None:
    assert ending_line(pods, NOW) == line


def test_once_killed_the_next_ctrl_c_leaves_them() -> None:
    assert ending_line([ending("a", 0)], NOW, killed=True).endswith(
        "(killed; Ctrl-C again to leave them)"
    )


async def test_the_lines_count_down(tmp_path: Path, autojump_clock: MockClock) -> None:
    node, said = Node(tmp_path), io.StringIO()
    pod = make_pod("mine", "stubborn", spec=("terminationGracePeriodSeconds: 12",))
    async with node.running(pod, make_pod("quick")) as agent:
        await trio.sleep(5)
        began = trio.current_time()
        await end_pods(agent, trio.Event(), said)
        assert 11 < trio.current_time() - began < 20
    lines = said.getvalue().splitlines()
    assert lines[0].startswith("ending 1 pod: mine-node: 11 s of grace left (")
    assert lines[1].startswith("ending 1 pod: mine-node: 9 s of grace left (")
    assert not node.runtime.sandboxes


async def test_a_hurry_kills_them(tmp_path: Path, autojump_clock: MockClock) -> None:
    node, hurry = Node(tmp_path), trio.Event()
    pod = make_pod("mine", "stubborn", spec=("terminationGracePeriodSeconds: 600",))
    async with node.running(pod) as agent:
        await trio.sleep(5)
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(end_pods, agent, hurry, None)
            await trio.sleep(3)
            hurry.set()
        assert trio.current_time() - began < 10
        assert node.leftovers() == []
    assert node.runtime.violations == []


STUBBORN = """
apiVersion: v1
kind: Pod
metadata: {name: mine}
spec:
  terminationGracePeriodSeconds: 120
  containers:
  - {name: main, image: none, command: [sh, -c, "trap '' TERM; while :; do sleep 1; done"]}
"""


def test_ctrl_c_on_a_terminal(tmp_path: Path) -> None:
    (tmp_path / "manifests").mkdir()
    (tmp_path / "manifests" / "mine.yaml").write_text(STUBBORN)
    command = [
        *(sys.executable, "-c", "from kubelet_trio.cli.main import cli; cli()", "run"),
        *(f"--root-dir={tmp_path / 'root'}", f"--pod-manifest-path={tmp_path / 'manifests'}"),
        *("--container-runtime-endpoint=process", "--fail-cgroupv1=false", "--healthz-port=0"),
        *("--remove-pods-on-exit", "--keep-kernel-settings"),
        *(["--process-allow-root"] if os.getuid() == 0 else []),
    ]
    ours, theirs = pty.openpty()
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs) as running:
        os.close(theirs)
        try:
            read_until(ours, b"Container started")
            running.send_signal(signal.SIGINT)
            read_until(ours, b"mine-")
            told = read_until(ours, b"Ctrl-C again to kill)")
            assert b" s of grace left" in told
            running.send_signal(signal.SIGINT)
            assert running.wait(30) == 0
        finally:
            running.kill()
    os.close(ours)


def read_until(descriptor: int, word: bytes, within: float = 60.0) -> bytes:
    """Return what a terminal shows up to a word."""
    seen, end = b"", time.monotonic() + within
    while word not in seen:
        ready, _, _ = select.select([descriptor], [], [], max(0.0, end - time.monotonic()))
        assert ready, seen.decode()
        try:
            seen += os.read(descriptor, 4096)
        except OSError as exc:  # EIO: nobody has the other end any more
            raise AssertionError(seen.decode()) from exc
    return seen
