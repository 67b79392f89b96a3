"""The runtime is told the range of pods' addresses: every new one, in spite of failures."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from lightkube.models.core_v1 import Node, NodeSpec
from trio.testing import MockClock

from kubelet_trio.cri import RuntimeCallError, RuntimeUnavailableError, UnsupportedCallError
from kubelet_trio.node import PodCidr


class World:
    """A runtime that may fail, and what it was told when."""

    def __init__(self, configured: str = "") -> None:
        self.failure: RuntimeCallError | None = None
        self.tries: list[tuple[float, str]] = []
        self.cidr = ""
        self.part = PodCidr(self.update, configured)

    async def update(self, cidr: str) -> None:
        await trio.lowlevel.checkpoint()
        self.tries.append((trio.current_time(), cidr))
        if self.failure is not None:
            raise self.failure
        self.cidr = cidr

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            await nursery.start(self.part.run)
            yield
            nursery.cancel_scope.cancel()


def node(*cidrs: str) -> Node:
    return Node(spec=NodeSpec(podCIDR=cidrs[0] if cidrs else None, podCIDRs=list(cidrs) or None))


async def test_each_range_is_told_once(autojump_clock: MockClock) -> None:
    world = World()
    async with world.running():
        world.part.want(node())
        await trio.sleep(10)
        assert world.tries == []
        for _again in range(3):
            world.part.want(node("10.1.0.0/24", "fd00:1::/64"))
            await trio.sleep(10)
        assert [cidr for _, cidr in world.tries] == ["10.1.0.0/24,fd00:1::/64"]
        world.part.want(node())  # a range is never taken back
        await trio.sleep(10)
        assert len(world.tries) == 1


async def test_the_configured_range_holds_until_the_node_has_one(
    autojump_clock: MockClock,
) -> None:
    world = World("10.9.0.0/16")
    async with world.running():
        await trio.sleep(10)
        assert world.cidr == "10.9.0.0/16"
        world.part.want(node("10.1.0.0/24"))
        await trio.sleep(10)
        assert world.cidr == "10.1.0.0/24"


async def test_a_failure_is_logged_once_and_tried_again(
    autojump_clock: MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    world = World("10.9.0.0/16")
    world.failure = RuntimeUnavailableError("UpdateRuntimeConfig", "connection refused")
    async with world.running():
        await trio.sleep(600)
        waits = [b - a for (a, _), (b, _) in zip(world.tries, world.tries[1:], strict=False)]
        assert waits[:3] == [pytest.approx(1), pytest.approx(2), pytest.approx(4)]
        assert max(waits) == pytest.approx(60)
        assert capsys.readouterr().out.count("pod_cidr_failed") == 1
        world.failure = None
        await trio.sleep(61)
        assert world.cidr == "10.9.0.0/16"


async def test_a_newer_range_does_not_wait_for_the_one_that_fails(
    autojump_clock: MockClock,
) -> None:
    world = World("10.9.0.0/16")
    world.failure = RuntimeCallError("UpdateRuntimeConfig", "no")
    async with world.running():
        await trio.sleep(600)
        world.failure, before = None, trio.current_time()
        world.part.want(node("10.1.0.0/24"))
        await trio.sleep(120)
        ((when, cidr),) = [told for told in world.tries if told[0] >= before]
        assert (round(when - before, 3), cidr) == (0, "10.1.0.0/24")


async def test_a_runtime_without_the_call_is_not_asked_again(autojump_clock: MockClock) -> None:
    world = World("10.9.0.0/16")
    world.failure = UnsupportedCallError("UpdateRuntimeConfig", "unknown method")
    async with world.running():
        await trio.sleep(600)
        assert len(world.tries) == 1
