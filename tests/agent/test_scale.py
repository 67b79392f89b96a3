"""What a node does for each pod does not grow with the number of its pods. Counted, not timed."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType

import pytest
import trio
from trio.testing import MockClock

from kubelet_trio.model import NANO
from tests.agent.node import Node, make_pod, ready

_COUNTED = ("/pods/admission/", "/worker/ledger.py", "/worker/admitter.py", "/pleg/state.py")
_REQUESTS = (
    "- {name: web, image: web, resources: {requests: {cpu: 1}}, ports: [{containerPort: 1}]}"
)


class Calls:
    """Counts the calls of functions in some files."""

    def __init__(self) -> None:
        self.made = 0

    def note(self, frame: FrameType, event: str, _arg: object) -> None:
        if event == "call" and any(part in frame.f_code.co_filename for part in _COUNTED):
            self.made += 1


async def calls_a_pod(base: Path, count: int) -> float:
    node, calls = Node(base), Calls()
    node.allocatable = {"pods": 1000 * NANO, "cpu": 1000 * NANO}
    async with node.running():
        await trio.sleep(30)
        before = sys.getprofile()
        sys.setprofile(calls.note)
        try:
            node.feed.put(*(make_pod(f"pod-{n}", containers=_REQUESTS) for n in range(count)))
            await trio.sleep(9)
            assert len(node.runtime.sandboxes) == count
            node.feed.put()
            await trio.sleep(9)
        finally:
            sys.setprofile(before)
        await trio.sleep(60)
        assert not node.runtime.sandboxes
    return calls.made / count


async def test_the_life_of_a_pod_takes_as_many_calls_beside_others(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    few = await calls_a_pod(tmp_path / "few", 20)
    many = await calls_a_pod(tmp_path / "many", 80)
    assert many <= 1.25 * few, (few, many)


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
