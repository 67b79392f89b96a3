"""A limit on calls in flight that calls which hang cannot use up."""

from __future__ import annotations

import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from kubelet_trio.pleg.slots import COUNTED_FOR, CallSlots


def began(limit: int, lengths: list[float]) -> list[float]:
    """Return when each of these calls began, in seconds since all were asked for."""
    times: dict[int, float] = {}

    async def call(slots: CallSlots, number: int, length: float) -> None:
        with await slots.take():
            times[number] = trio.current_time()
            await trio.sleep(length)

    async def main() -> list[float]:
        slots, start = CallSlots(limit), trio.current_time()
        async with trio.open_nursery() as calls:
            for number, length in enumerate(lengths):
                calls.start_soon(call, slots, number, length)
                await trio.testing.wait_all_tasks_blocked()
        return [times[number] - start for number in range(len(lengths))]

    return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_calls_wait_for_those_before_them() -> None:
    assert began(2, [0.125, 0.0625, 0.125, 0.0625]) == [0, 0, 0.0625, 0.125]


def test_a_call_that_hangs_counts_for_a_moment() -> None:
    assert began(1, [60, 60, 0.125, 0.125]) == [0, 0.25, 0.5, 0.625]


@given(st.integers(1, 4), st.lists(st.sampled_from([0, 0.0625, 0.125, 0.25, 2]), max_size=20))
def test_calls_begin_in_order_and_no_more_count_than_may(limit: int, lengths: list[float]) -> None:
    times = began(limit, lengths)
    assert times == sorted(times)
    counted = [min(length, COUNTED_FOR) for length in lengths]
    for at in times:
        going_on = [t for t, length in zip(times, counted, strict=True) if t <= at < t + length]
        assert len(going_on) <= limit
    # None waits longer than the calls before it would count one after the other.
    assert all(t <= sum(counted[:n]) for n, t in enumerate(times))


async def test_who_is_cancelled_while_waiting_takes_no_slot(autojump_clock: object) -> None:
    slots = CallSlots(1)
    with await slots.take():
        with trio.move_on_after(COUNTED_FOR / 2) as waiting:
            await slots.take()
        assert waiting.cancelled_caught
    start = trio.current_time()
    with await slots.take():
        assert trio.current_time() == start
