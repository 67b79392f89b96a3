"""How often a pod's record is written, and what is in it while the pod is being removed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

import pytest
import trio
from trio.testing import MockClock

from kubelet_trio.model import Offload, Purpose, inline_offload, pod_uid
from kubelet_trio.pods import load_records
from kubelet_trio.testing import FaultKind
from tests.agent.node import Node, make_pod

P = ParamSpec("P")
T = TypeVar("T")


class CountedRecords:
    """Counts what is written of pods' records."""

    def __init__(self) -> None:
        self.written = 0

    async def __call__(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await inline_offload(fn, *args, **kwargs)

    def of(self, purpose: Purpose) -> Offload:
        return self._write if purpose is Purpose.RECORDS else inline_offload

    async def _write(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        self.written += 1
        return await inline_offload(fn, *args, **kwargs)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


async def test_a_life_takes_three_writes_and_the_removal(
    node: Node, autojump_clock: MockClock
) -> None:
    node.offload = counted = CountedRecords()
    async with node.running():
        await trio.sleep(1)
        counted.written = 0  # the agent has made its directories
        node.feed.put(make_pod())
        await trio.sleep(1)
        assert counted.written == 2  # before anything runs, and that it runs
        node.feed.put()
        await trio.sleep(1)
        assert node.leftovers() == []
    assert counted.written == 4  # the decision to remove it; and that nothing is left


async def test_how_a_pod_ended_is_recorded_if_its_removal_takes_long(
    node: Node, autojump_clock: MockClock
) -> None:
    pod = make_pod()
    async with node.running(pod):
        await trio.sleep(1)
        node.runtime.faults.add(FaultKind.HANG, "RemovePodSandbox")
        node.feed.put()
        await trio.sleep(10)
        record = load_records(node.base / "root" / "pods")[pod_uid(pod)]
        assert record.removed
        assert record.pod.status is not None
        (container,) = record.pod.status.containerStatuses or []
        assert container.state is not None
        assert container.state.terminated is not None
