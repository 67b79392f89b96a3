"""What a pod costs, counted and not timed: a change that makes one dearer is to be seen here.

The CRI calls of a pod's life are counted in `test_pod_lives`; `bench/` takes the times.
"""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from tests.agent.node import Node, make_pod


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def tasks() -> int:
    return trio.lowlevel.current_statistics().tasks_living


async def test_a_pod_without_probes_is_two_tasks(node: Node, autojump_clock: MockClock) -> None:
    # Its worker, and the exit watcher of its container.
    async with node.running():
        await trio.sleep(15)
        before = tasks()
        node.feed.put(*(make_pod(f"pod-{n}") for n in range(10)))
        await trio.sleep(15)
        assert (tasks() - before) / 10 <= 2
        node.feed.put()
        await trio.sleep(60)
        assert tasks() <= before


async def test_a_quiet_minute_asks_the_runtime_as_often_whatever_runs(
    node: Node, autojump_clock: MockClock
) -> None:
    asked = []
    for count in (1, 30):
        async with node.running(*(make_pod(f"pod-{n}") for n in range(count))):
            await trio.sleep(120)
            node.runtime.calls.clear()
            await trio.sleep(600)
            asked.append(len(node.calls()))
    one, thirty = asked
    # Each call that comes round may fall on either end of the window; one more a pod were 29.
    assert abs(thirty - one) < 10
    # A minute: Status every 5 s, two lists every 10 s, and what garbage collection looks at.
    assert one <= 10 * (12 + 2 * 6 + 6)


async def test_a_relist_keeps_nothing_and_decodes_nothing_unchanged(
    node: Node, autojump_clock: MockClock
) -> None:
    pods = 50
    async with node.running(*(make_pod(f"pod-{n}") for n in range(pods))) as agent:
        await trio.sleep(120)
        tracemalloc.start()
        try:
            for _ in range(2):  # the first one's lists take the place of untraced ones
                gc.collect()
                before, _ = tracemalloc.get_traced_memory()
                tracemalloc.reset_peak()
                agent.parts.runtime.pleg.relist_soon()
                await trio.sleep(1)
                after, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    # The lists themselves, as the runtime sends them, and a reference each: a decoded pod
    # and its container alone would be ten times that.
    assert (peak - before) / pods < 2048
    assert (after - before) / pods < 512
