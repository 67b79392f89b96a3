"""The hour that the agent keeps for its page: only where a page is."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import trio
from trio.testing import MockClock

from kubelet_trio.model import pod_uid
from tests.agent.node import Node, make_pod


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


async def test_nothing_is_measured_until_a_page_asks(node: Node, autojump_clock: MockClock) -> None:
    async with node.running(make_pod()) as agent:
        await trio.sleep(600)
        page = msgspec.json.decode(await agent.history.page())
        assert page == {"period": 10, "times": [], "pods": []}
        await trio.sleep(600)
        page = msgspec.json.decode(await agent.history.page())
    # Ten minutes since the first request.
    assert 59 <= len(page["times"]) <= 61


async def test_plots_are_full_when_the_page_is_opened(
    node: Node, autojump_clock: MockClock
) -> None:
    pod = make_pod()
    async with node.running(pod) as agent:
        agent.history.want()  # as a port of the page does when it is opened
        await trio.sleep(2 * 3600)
        page = msgspec.json.decode(await agent.history.page())
        assert len(page["times"]) == len(page["node"]["cpu"]) == 360
        steps = {round(b - a) for a, b in zip(page["times"], page["times"][1:], strict=False)}
        assert steps == {10}
        assert [found["uid"] for found in page["pods"]] == [pod_uid(pod)]
        page = msgspec.json.decode(await agent.history.page(pod_uid(pod)))
    (found,) = page["pods"]
    assert set(found["containers"]) == {"web"}
    assert len(found["disk"]) == 360
