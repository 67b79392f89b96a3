"""Pulls beside each other count once; a pull that fails goes on until an image is there."""

from __future__ import annotations

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from kubelet_trio.model import PodUid
from kubelet_trio.status import PullTimes

UID = PodUid("a")
AT = list[tuple[float, str]]  # seconds, and the image whose pull begins; "": an image is there


async def told(times: PullTimes, events: AT) -> float:
    began = trio.current_time()
    for second, image in events:
        await trio.sleep_until(began + second)
        if image:
            times.begin(UID, image)
        else:
            times.end(UID)
    return times.seconds(UID)


@pytest.mark.parametrize(
    ("events", "seconds"),
    [
        pytest.param([], 0, id="all images were there"),
        pytest.param([(1, "")], 0, id="an image was there"),
        pytest.param([(1, "x"), (4, "")], 3, id="one pull"),
        pytest.param([(0, "x"), (2, ""), (5, "y"), (6, "")], 3, id="one after the other"),
        pytest.param([(0, "x"), (2, "y"), (5, ""), (9, "")], 9, id="beside each other"),
        pytest.param([(0, "x"), (0, "y"), (5, ""), (5, "")], 5, id="at the same time"),
        pytest.param([(0, "x"), (10, "x"), (30, "x"), (32, "")], 32, id="failed twice"),
        pytest.param([(0, "x"), (5, "y"), (10, ""), (15, "x"), (20, "")], 20, id="one failed"),
        pytest.param([(3, "x")], 0, id="none has ended"),
    ],
)
async def test_what_counts_of_pulls(autojump_clock: MockClock, events: AT, seconds: float) -> None:
    times = PullTimes()
    times.track(UID)
    assert await told(times, events) == pytest.approx(seconds)
    times.forget(UID)
    assert times.seconds(UID) == 0


async def test_a_pod_that_is_not_tracked_keeps_nothing(autojump_clock: MockClock) -> None:
    times = PullTimes()
    assert await told(times, [(0, "x"), (5, "")]) == 0
    times.track(UID)
    assert times.seconds(UID) == 0


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["x", "y", "z", ""]))))
def test_no_more_counts_than_has_passed(steps: list[tuple[int, str]]) -> None:
    events, now, first = AT(), 0.0, None
    for pause, image in steps:
        now += pause
        events.append((now, image))
        first = now if first is None and image else first

    async def main() -> float:
        times = PullTimes()
        times.track(UID)
        return await told(times, events)

    seconds = trio.run(main, clock=MockClock(autojump_threshold=0))
    assert 0 <= seconds <= (now - first if first is not None else 0) + 1e-6
