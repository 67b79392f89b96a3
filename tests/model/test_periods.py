from __future__ import annotations

import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from kubelet_trio.model import next_due

PERIODS = st.floats(0.01, 10_000)


@given(start=st.floats(0, 1e6), period=PERIODS, share=st.floats(0, 1, exclude_max=True))
def test_work_is_due_within_a_period_and_never_now(
    start: float, period: float, share: float
) -> None:
    async def main() -> None:
        now = trio.current_time()
        for _ in range(5):
            due = next_due(period, phase=share * period)
            assert now < due <= now + period * (1 + 1e-6)
            await trio.sleep_until(due)
            now = trio.current_time()

    clock = MockClock(autojump_threshold=0)
    clock.jump(start)
    trio.run(main, clock=clock)


@given(st.floats(0, 1e6), st.integers(1, 100), st.integers(1, 20))
def test_work_of_the_longer_period_is_done_along_with_that_of_a_shorter_one(
    start: float, period: int, times: int
) -> None:
    async def main() -> None:
        await trio.sleep_until(next_due(period * times))
        assert trio.current_time() % period == 0

    clock = MockClock(autojump_threshold=0)
    clock.jump(start)
    trio.run(main, clock=clock)


async def test_how_long_the_work_took_moves_nothing(autojump_clock: MockClock) -> None:
    await trio.sleep(3)
    done = []
    for took in (0.5, 9.5, 12.0, 0.0):
        await trio.sleep_until(next_due(10, phase=5))
        done.append(trio.current_time())
        await trio.sleep(took)
    assert done == [5, 15, 25, 45]
