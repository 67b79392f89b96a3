"""Many tasks that are woken at once, a few of them a turn."""

from __future__ import annotations

import trio
from hypothesis import given
from hypothesis import strategies as st

from kubelet_trio.model import Slices, Turnstile


class Turns(trio.abc.Instrument):
    def __init__(self) -> None:
        self.number = 0

    def after_io_wait(self, timeout: float) -> None:
        self.number += 1


def passed(count: int, limit: int, cancelled: frozenset[int] = frozenset()) -> list[list[int]]:
    """Return who passed, by turn."""
    turns, by_turn = Turns(), dict[int, list[int]]()

    async def one(turnstile: Turnstile, number: int) -> None:
        with trio.CancelScope() as scope:
            if number in cancelled:
                scope.cancel()
            await turnstile.enter()
            by_turn.setdefault(turns.number, []).append(number)

    async def main() -> None:
        turnstile = Turnstile(limit)
        async with trio.open_nursery() as nursery:
            for number in range(count):
                nursery.start_soon(one, turnstile, number)

    trio.run(main, instruments=[turns])
    return list(by_turn.values())


def test_a_few_pass_at_once() -> None:
    assert [len(each) for each in passed(15, 16)] == [15]


def test_no_turn_has_more_than_twice_the_limit() -> None:
    turns = passed(500, 16)
    assert max(map(len, turns)) <= 2 * 16
    assert len(turns) <= 500 / 16 + 2
    assert sum(map(len, turns)) == 500


@given(st.integers(1, 60), st.integers(1, 5), st.frozensets(st.integers(0, 59)))
def test_whoever_is_not_cancelled_passes(count: int, limit: int, cancelled: frozenset[int]) -> None:
    through = {number for turn in passed(count, limit, cancelled) for number in turn}
    assert set(range(count)) - cancelled <= through


def test_slices_are_as_long_as_asked() -> None:
    turns, at = Turns(), list[int]()

    async def main() -> None:
        slices = Slices(10)
        for _ in range(35):
            await slices.step()
            at.append(turns.number)

    trio.run(main, instruments=[turns])
    assert [at.count(turn) for turn in sorted(set(at))] == [10, 10, 10, 5]
