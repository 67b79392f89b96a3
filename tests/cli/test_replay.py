"""`replay` prints the decisions of a recording, and exits with 1 if they are others now."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
import trio
from click.testing import CliRunner

from kubelet_trio.agent import Agent
from kubelet_trio.cli.main import cli as main
from kubelet_trio.cli.replay import divergence_lines
from kubelet_trio.replay import Divergence
from tests.agent.node import Node, make_pod
from tests.replay.recordings import record


@pytest.fixture(autouse=True)
def logging() -> Iterator[None]:
    """Restore the log, which the command turns off."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    async def story(node: Node, agent: Agent) -> None:
        node.feed.put(make_pod())
        await trio.sleep(5)

    return record(Node(tmp_path), story)


def test_it_prints_decisions(recording: Path) -> None:
    shown = CliRunner().invoke(main, ["replay", str(recording), "--pod", "web-node"])
    assert shown.exit_code == 0, shown.output
    assert "default/web-node         call    create container web, attempt 0" in shown.output
    assert "it decides as it did" in shown.output.splitlines()[-1]


def test_it_prints_json(recording: Path) -> None:
    shown = CliRunner().invoke(main, ["replay", str(recording), "--json", "--until", "+3s"])
    found = json.loads(shown.output)
    assert found["divergence"] is None
    assert found["ended"] - found["began"] <= 3


def test_a_file_that_cannot_be_read_is_trouble(tmp_path: Path) -> None:
    path = tmp_path / "x.rec"
    path.write_text("no")
    shown = CliRunner().invoke(main, ["replay", str(path)])
    assert shown.exit_code == 2
    assert f"error: {path}: this is no recording" in shown.output


@pytest.mark.parametrize("option", [["--until", "soon"], ["--tolerance", "x"]])
def test_options_are_checked(recording: Path, option: list[str]) -> None:
    shown = CliRunner().invoke(main, ["replay", str(recording), *option])
    assert shown.exit_code == 2
    assert option[0] in shown.output


def test_a_divergence_is_told() -> None:
    lines = list(
        divergence_lines(Divergence(0, "u", "default/web", "stop", "nothing", ("it ends",)))
    )
    assert "default/web: IT DECIDES OTHERWISE" in lines[0]
    assert lines[1:] == [
        "  recorded:     stop",
        "  decided now:  nothing",
        "  because:      it ends",
    ]
