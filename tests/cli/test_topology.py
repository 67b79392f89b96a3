"""`kubelet-trio topology` against a real control socket, and without one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import yaml
from click.testing import CliRunner, Result

from kubelet_trio.cli.main import cli
from kubelet_trio.managers import draw_machine, read_machine, topology_page
from tests.cli.running import ServedView, served
from tests.managers.topology.test_draw import HOLDINGS, machine_of
from tests.server.fake_view import FakeView

PAGE = topology_page(machine_of(), HOLDINGS)


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[ServedView]:
    with served(FakeView(), tmp_path) as running:
        running.topology = msgspec.json.encode(PAGE)
        yield running


def invoke(root: Path, *arguments: str, **environment: str) -> Result:
    known = {"COLUMNS": "80", "TERM": "xterm", **environment}
    argv = ["topology", "--root-dir", str(root), *arguments]
    return CliRunner().invoke(cli, argv, env=known)


def test_who_has_what_is_drawn_in_the_terminals_width(agent: ServedView) -> None:
    for width in (80, 200):
        result = invoke(agent.root, COLUMNS=str(width))
        assert result.output == draw_machine(machine_of(), HOLDINGS, width=width)


def test_a_terminal_without_unicode_has_ascii(agent: ServedView) -> None:
    drawn = draw_machine(machine_of(), HOLDINGS, width=80, unicode=False)
    assert invoke(agent.root, "--ascii").output == drawn
    assert invoke(agent.root, TERM="linux").output == drawn


def test_json_and_yaml_have_the_agents_page(agent: ServedView) -> None:
    assert msgspec.json.decode(invoke(agent.root, "-o", "json").output) == PAGE
    assert yaml.safe_load(invoke(agent.root, "-o", "yaml").output) == PAGE


def test_an_agent_of_another_version_is_named(agent: ServedView) -> None:
    agent.topology = b'{"machine": 3}'
    result = invoke(agent.root)
    assert result.exit_code == 1
    assert "error: the agent is of another version: Expected `object`" in result.output


def test_the_machine_is_drawn_without_an_agent(tmp_path: Path) -> None:
    result = invoke(tmp_path)
    said, heading, *drawn = result.output.splitlines()
    assert said.startswith("no agent answers on ")
    assert said.endswith("This is the machine alone.")
    assert f"{len(read_machine().cpus)} CPU" in heading
    assert "NUMA node" in "".join(drawn)
    assert result.exit_code == 0


def test_the_agent_is_not_asked_for_the_machine_alone(agent: ServedView) -> None:
    result = invoke(agent.root, "--machine", "-o", "json")
    page = msgspec.json.decode(result.output)
    # Not its memory: of a virtual machine it may change between two readings.
    assert page["machine"]["cpus"] == topology_page(read_machine(), None)["machine"]["cpus"]
    assert page["holdings"] is None
