"""Rate limits, waits, and lists that let others run."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import msgspec
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from lightkube.models.core_v1 import Pod
from trio.testing import MockClock

from kubelet_trio.kube.codec import SLICE, decode_items
from kubelet_trio.kube.limits import TokenBucket


async def times(bucket: TokenBucket, arrivals: Sequence[float]) -> list[float]:
    """Return when each of those who come at these times may go, counted from now."""
    found: dict[int, float] = {}
    began = trio.current_time()

    async def ask(number: int, at: float) -> None:
        await trio.sleep_until(began + at)
        await bucket.take()
        found[number] = round(trio.current_time() - began, 6)

    async with trio.open_nursery() as nursery:
        for number, at in enumerate(arrivals):
            nursery.start_soon(ask, number, at)
    return [found[number] for number in range(len(arrivals))]


async def test_a_burst_goes_at_once_and_the_rest_in_order(autojump_clock: MockClock) -> None:
    bucket = TokenBucket(10, 3)
    gone = await times(bucket, [0.0] * 6 + [0.3] + [100.0] * 4)
    assert sorted(gone[:6]) == [0, 0, 0, 0.1, 0.2, 0.3]
    assert gone[6] == 0.4
    assert sorted(gone[7:]) == [100, 100, 100, 100.1]


@pytest.mark.parametrize(("qps", "last"), [(0, 0.2), (-1, 0)])
async def test_no_rate_is_client_gos(autojump_clock: MockClock, qps: float, last: float) -> None:
    assert sorted(await times(TokenBucket(qps, 0), [0.0] * 11)) == [0] * 10 + [last]


@given(st.lists(st.floats(0, 0.5), max_size=60))
def test_no_window_holds_more_than_burst_and_rate(steps: list[float]) -> None:
    arrivals = list(accumulate(steps))
    sent = sorted(
        trio.run(times, TokenBucket(20, 5), arrivals, clock=MockClock(autojump_threshold=0))
    )
    for start, first in enumerate(sent):
        within = [time for time in sent[start:] if time < first + 1.0]
        assert len(within) <= 5 + 20 + 1


async def test_whoever_gives_up_keeps_nobody_waiting(autojump_clock: MockClock) -> None:
    bucket = TokenBucket(50, 100)
    began = trio.current_time()

    async def give_up() -> None:
        with trio.move_on_after(0.2):
            await bucket.take()

    async with trio.open_nursery() as nursery:
        for _ in range(5_000):
            nursery.start_soon(give_up)
    await bucket.take()
    assert trio.current_time() - began < 0.3


async def test_others_run_while_a_list_is_decoded() -> None:
    """Between any two slices of 1,000 pods every other task gets its turn."""
    pod = msgspec.Raw(b'{"metadata":{"name":"web"},"spec":{"containers":[{"name":"main"}]}}')
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        pods = await decode_items([pod] * 1000, Pod)
        nursery.cancel_scope.cancel()
    assert len(pods) == 1000
    assert turns >= 1000 / SLICE - 5
