"""Rate limits, waits, and lists that let others run."""

from __future__ import annotations

import msgspec
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from lightkube.models.core_v1 import Pod

from kubelet_trio.kube.codec import SLICE, decode_items
from kubelet_trio.kube.limits import Backoff, TokenBucket


def test_a_burst_goes_at_once_and_the_rest_in_order() -> None:
    bucket = TokenBucket(10, 3)
    assert [round(bucket.reserve(100.0), 6) for _ in range(6)] == [0, 0, 0, 0.1, 0.2, 0.3]
    assert round(bucket.reserve(100.3), 6) == 0.1
    assert [round(bucket.reserve(200.0), 6) for _ in range(4)] == [0, 0, 0, 0.1]


@pytest.mark.parametrize(("qps", "delays"), [(0, [0] * 10 + [0.2]), (-1, [0] * 11)])
def test_no_rate_is_client_gos(qps: float, delays: list[float]) -> None:
    bucket = TokenBucket(qps, 0)
    assert [round(bucket.reserve(0.0), 6) for _ in range(11)] == delays


@given(st.lists(st.floats(0, 0.5), max_size=200))
def test_no_window_holds_more_than_burst_and_rate(steps: list[float]) -> None:
    bucket, now, sent = TokenBucket(20, 5), 0.0, []
    for step in steps:
        now += step
        sent.append(now + bucket.reserve(now))
    assert sent == sorted(sent)
    for start, first in enumerate(sent):
        within = [time for time in sent[start:] if time < first + 1.0]
        assert len(within) <= 5 + 20 + 1


def test_waits_double_with_jitter_and_begin_anew() -> None:
    backoff = Backoff(0.8, 30, rand=lambda: 0.5)
    delays, now = [], 0.0
    for _ in range(8):
        delays.append(backoff.next_delay(now))
        now += delays[-1]
    assert delays == pytest.approx([1.2, 2.4, 4.8, 9.6, 19.2, 38.4, 45, 45])
    assert backoff.next_delay(now + 121) == pytest.approx(1.2)


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
