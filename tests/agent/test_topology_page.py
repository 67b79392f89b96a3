"""The control socket's `/topology` of a running agent."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import msgspec
import pytest
from trio.testing import MockClock

from kubelet_trio.agent.topology_page import TopologyPage
from kubelet_trio.managers import (
    Machine,
    MachineHoldings,
    TopologyError,
    read_machine,
    read_topology_page,
)
from kubelet_trio.server import HttpError
from tests.agent.node import Node, make_pod
from tests.managers.topology.test_draw import HOLDINGS, machine_of


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


async def test_an_agent_without_managers_shows_the_machine(
    node: Node, autojump_clock: MockClock
) -> None:
    async with node.running(make_pod()) as agent:
        page = msgspec.json.decode(await agent.topology_page.page())
    assert read_topology_page(page) == (read_machine(), None)


async def test_the_page_has_what_the_managers_say() -> None:
    async def show() -> tuple[Machine, MachineHoldings]:
        return machine_of(), HOLDINGS

    page = msgspec.json.decode(await TopologyPage(show).page())
    assert read_topology_page(page) == (machine_of(), HOLDINGS)


async def test_a_machine_that_cannot_be_read_is_an_answer() -> None:
    async def show() -> NoReturn:
        raise TopologyError("sys/x", "is broken")

    with pytest.raises(HttpError, match="/sys/x: is broken") as caught:
        await TopologyPage(show).page()
    assert caught.value.status == 500
