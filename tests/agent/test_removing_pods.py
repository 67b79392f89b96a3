"""`--remove-pods-on-exit`: the end of the agent is the end of its pods."""

from __future__ import annotations

from pathlib import Path

import trio
from trio.testing import MockClock

from tests.agent.node import Node, make_pod


async def test_all_pods_are_ended_in_order_and_nothing_is_left(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    node = Node(tmp_path)
    async with node.running(make_pod("a", "slow-stop-3"), make_pod("b")) as agent:
        await trio.sleep(1)
        await agent.remove_pods()
        assert node.leftovers() == []
        assert not node.runtime.sandboxes
    assert node.runtime.violations == []


async def test_nothing_is_started_any_more(tmp_path: Path, autojump_clock: MockClock) -> None:
    node = Node(tmp_path)
    async with node.running(make_pod("a", "stubborn")) as agent:
        await trio.sleep(1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(agent.remove_pods)
            await trio.sleep(1)
            node.feed.put(make_pod("late"))
        assert not node.runtime.sandboxes
        assert not node.runtime.instances("late-node")


async def test_a_removal_that_is_cut_off_goes_on_at_the_next_start(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    node = Node(tmp_path)
    pod = make_pod("a", "stubborn")
    async with node.running(pod) as agent:
        await trio.sleep(1)
        with trio.move_on_after(5):
            await agent.remove_pods()
    assert node.runtime.alive()
    async with node.running():
        await trio.sleep(60)
    assert node.leftovers() == []
    assert node.runtime.violations == []
