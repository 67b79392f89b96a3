"""What a node does for each pod does not grow with the number of its pods. Counted, not timed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from kubelet_trio.model import NANO
from tests.agent.node import Node, make_pod, ready
from tests.harness.calls import Calls, check_growth

_REQUESTS = (
    "- {name: web, image: web, resources: {requests: {cpu: 1}}, ports: [{containerPort: 1}]}"
)
_EDITED = _REQUESTS.replace("image: web", "image: other")


async def calls_of(base: Path, count: int) -> Counter[str]:
    """Count the calls of a minute in which pods start, are listed often, are edited, and end."""
    node, calls = Node(base), Calls()
    node.allocatable = {"pods": 1000 * NANO, "cpu": 1000 * NANO}
    pods = [make_pod(f"pod-{n}", containers=_REQUESTS) for n in range(count)]
    async with node.running():
        await trio.sleep(30)
        with calls.counted():
            node.feed.put(*pods)
            await trio.sleep(9)
            assert len(node.runtime.sandboxes) == count
            await trio.sleep(42)
            node.feed.put(*(make_pod(f"pod-{n}", containers=_EDITED) for n in range(count)))
            await trio.sleep(9)
            node.feed.put()
            await trio.sleep(9)
        await trio.sleep(60)
        assert not node.runtime.sandboxes
    return calls.made


async def test_the_life_of_a_pod_takes_as_many_calls_beside_others(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    # Admission, relists, statuses, workers: whatever the agent does.
    few = await calls_of(tmp_path / "few", 15)
    many = await calls_of(tmp_path / "many", 45)
    check_growth(few, 15, many, 45)


def test_the_check_finds_what_is_quadratic() -> None:
    with pytest.raises(AssertionError):  # in all
        check_growth({"a": 20 * 20}, 20, {"a": 80 * 80}, 80)
    with pytest.raises(AssertionError):  # beside much else
        check_growth({"a": 20 * 20, "b": 200_000}, 20, {"a": 80 * 80, "b": 800_000}, 80)
    check_growth({"a": 20 * 5}, 20, {"a": 80 * 5}, 80)


class Turns(trio.abc.Instrument):
    """Finds the most calls of one function in one turn of the loop."""

    def __init__(self, calls: Calls, function: str) -> None:
        self.most = self._before = 0
        self._calls, self._function = calls, function

    def before_io_wait(self, timeout: float) -> None:
        made = self._calls.made[self._function]
        self.most, self._before = max(self.most, made - self._before), made


async def test_pods_end_and_are_looked_at_a_few_a_turn(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    node, calls, count = Node(tmp_path), Calls(), 60
    node.allocatable = {"pods": 1000 * NANO, "cpu": 1000 * NANO}
    ends = Turns(calls, "pods/worker/worker.py:PodWorker.remove")
    asks = Turns(calls, "pleg/inspector.py:Inspector._ask_container")
    async with node.running(*(make_pod(f"pod-{n}") for n in range(count))):
        await trio.sleep(60)
    for turns in (ends, asks):
        trio.lowlevel.add_instrument(turns)
    async with node.running(*(make_pod(f"pod-{n}") for n in range(count))):
        with calls.counted():
            await trio.sleep(30)
            node.feed.put()
            await trio.sleep(30)
    for turns in (ends, asks):
        trio.lowlevel.remove_instrument(turns)
    assert calls.made["pods/worker/worker.py:PodWorker.remove"] >= count
    assert 0 < ends.most <= 17, ends.most
    assert 0 < asks.most <= 34, asks.most


@pytest.mark.parametrize("room", [40, 64])
async def test_pods_that_come_together_are_admitted_in_their_order(
    tmp_path: Path, autojump_clock: MockClock, room: int
) -> None:
    # More than are applied in one go.
    node = Node(tmp_path)
    node.allocatable = {"pods": 1000 * NANO, "cpu": room * NANO}
    pods = [make_pod(f"pod-{n:02}", containers=_REQUESTS) for n in range(75)]
    async with node.running(silent=True):
        await trio.sleep(30)
        node.feed.put(*pods)
        await trio.sleep(60)
        assert [ready(node.status(pod)) for pod in pods] == [n < room for n in range(75)]
        # Static pods are critical: for these, pods to preempt were looked for too.
        assert "no set of running pods found" in (node.status(pods[-1]).message or "")
