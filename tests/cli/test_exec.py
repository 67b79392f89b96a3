"""`kubelet-trio exec` as a process of its own, with pipes and with a terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.running import served
from tests.server.node_view import FakeKubeletApiView
from tests.server.streams.test_local import Local

_LIMIT = 60.0  # s


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """The directory of an agent whose commands say back what they hear."""
    view = FakeKubeletApiView()
    view.fake_runtime.local_streams = Local()
    with served(view, tmp_path):
        yield tmp_path


def command(root: Path, *arguments: str) -> list[str]:
    program = [sys.executable, "-c", "from kubelet_trio.cli import main; main()"]
    return [*program, "--root-dir", str(root), "exec", *arguments]


def run(root: Path, *arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        command(root, *arguments), input=given, capture_output=True, check=False, timeout=_LIMIT
    )


def test_a_command_hears_us_and_its_exit_code_is_ours(root: Path) -> None:
    ran = run(root, "-i", "web", "--", "cat", "-n", given=b"hello fail")
    assert (ran.stdout, ran.stderr, ran.returncode) == (b"hello fail", b"", 3)
    ran = run(root, "-i", "web-node1", "-c", "web", "--", "cat", given=b"bad")
    assert (ran.stdout, ran.stderr, ran.returncode) == (b"", b"bad", 0)


def test_much_goes_both_ways(root: Path) -> None:
    much = os.urandom(1 << 16) * 64  # 4 MiB: more than all that is on the way can hold
    much = much.replace(b"fail", b"good").replace(b"bad", b"dab")
    assert run(root, "-i", "web", "--", "cat", given=much).stdout == much


def test_what_is_not_there_is_said(root: Path) -> None:
    ran = run(root, "nothing", "--", "ls")
    assert (ran.returncode, b'pods "nothing" not found' in ran.stderr) == (1, True)
    ran = run(root, "web", "-c", "other", "--", "ls")
    assert (ran.returncode, b'container not found ("other")' in ran.stderr) == (1, True)
    ran = run(root, "-t", "web", "--", "sh")
    assert (ran.returncode, b"-t needs a terminal" in ran.stderr) == (1, True)


def test_a_terminal_and_its_sizes(root: Path) -> None:
    ours, theirs = pty.openpty()
    _resize(theirs, 40, 100)
    shell = subprocess.Popen(
        command(root, "-it", "web", "--", "sh"), stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    try:
        _read_until(ours, b"40x100;")
        os.write(ours, b"\x03typed")  # raw: ^C is a key as any other
        _read_until(ours, b"\x03typed")
        _resize(ours, 50, 120)
        shell.send_signal(signal.SIGWINCH)  # the terminal is nobody's controlling one
        _read_until(ours, b"50x120;")
    finally:
        shell.kill()
        shell.wait()
        os.close(ours)


def _resize(terminal: int, rows: int, columns: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def _read_until(descriptor: int, wanted: bytes) -> None:
    said, deadline = b"", time.monotonic() + _LIMIT
    while wanted not in said:
        left = deadline - time.monotonic()
        assert left > 0, said
        if select.select([descriptor], [], [], left)[0]:
            said += os.read(descriptor, 65536)
