"""The tutorials without a container runtime, followed from top to bottom as a stranger does."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.first_run import first_run
from tests.harness.pods import eventually
from tests.harness.ports import free_port
from tests.harness.transcript import Block, Terminal, blocks_of, follow

REPO = Path(__file__).parents[2]
# Root is an ordinary user in a user namespace: the pods of a tutorial need no more.
AS_USER = ("unshare", "--user", "--map-user=1000", "--map-group=1000") if os.getuid() == 0 else ()
_PORTS = ("18080", "19090")


def pages_blocks(name: str) -> list[Block]:
    """Return the blocks for this machine: its name, and ports that are free here."""
    ports = [(port, str(free_port())) for port in _PORTS]
    hostname = socket.gethostname().lower()
    return blocks_of(REPO / "docs" / name, [("-laptop", f"-{hostname}"), *ports])


def need_user() -> None:
    if AS_USER and subprocess.run([*AS_USER, "true"], capture_output=True).returncode:
        pytest.skip("root may make no user namespace here")


def terminal(directory: Path, home: Path) -> Terminal:
    """Return a terminal in a directory, where `python3` is the tests'."""
    path = f"{sys.prefix}/bin:{os.environ['PATH']}"
    environment = {**os.environ, "HOME": str(home), "PATH": path, "PYTHONWARNINGS": "error"}
    environment.pop("PYTEST_ADDOPTS", None)  # ours, and not of the pytest that the page runs
    # With jobs of their own, as for a person.
    return Terminal([*AS_USER, "bash", "-em"], environment, directory)


def test_ten_minutes_on_a_laptop(short_path: Path) -> None:
    need_user()
    if shutil.which("curl") is None:
        pytest.skip("there is no curl")
    first, second, *rest = pages_blocks("tutorial-laptop.md")
    home, clone = short_path / "home", short_path / "clone"
    clone.mkdir()
    make, start = first.text.splitlines()
    assert (make, start) == ("mkdir ~/node", "scripts/first-run --state ~/node")
    (home / "node").mkdir(parents=True)
    flags = ("--container-runtime-endpoint=process",)
    options = ["--state", str(home / "node")]
    with first_run(*flags, options=options, enter=AS_USER) as run:
        eventually(lambda: "The agent runs." in run.printed(), within=60)
        laptop = terminal(clone, home)
        try:
            for block in (second, *rest):
                follow(block, laptop.run, lambda name, text: (clone / name).write_text(text))
        finally:
            laptop.close()
        assert run.interrupt() == 130
        assert run.processes() == []
    assert list(home.iterdir()) == []
    assert list(clone.iterdir()) == []


def test_ten_minutes_in_a_trio_program(short_path: Path) -> None:
    need_user()
    directory = short_path / "program"
    directory.mkdir()
    program = terminal(directory, short_path)
    try:
        for block in pages_blocks("tutorial-library.md"):
            follow(block, program.run, lambda name, text: (directory / name).write_text(text))
    finally:
        program.close()
