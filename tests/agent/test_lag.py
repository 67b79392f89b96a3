"""How long the loop is held, as `/metrics` tells it."""

from __future__ import annotations

import trio
from trio.testing import MockClock

from kubelet_trio.agent.lag import NAME, lag_measured
from kubelet_trio.model import Meter


async def test_what_holds_the_loop_is_in_its_bucket(mock_clock: MockClock) -> None:
    meter = Meter()
    with lag_measured(meter):
        await trio.lowlevel.checkpoint()
        await trio.lowlevel.checkpoint()
        mock_clock.jump(0.3)  # as a task would take it
        await trio.lowlevel.checkpoint()
        await trio.lowlevel.checkpoint()
    [(_, found)] = list(meter.histograms(NAME))
    assert found.counts[found.buckets.index(0.5)] == 1
    assert found.counts[0] == found.count - 1
    await trio.lowlevel.checkpoint()
    assert [h.count for _, h in meter.histograms(NAME)] == [found.count]
