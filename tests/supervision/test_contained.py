from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from kubelet_trio.supervision import call_contained, run_contained


async def test_a_failure_stays_in_its_task(autojump_clock: MockClock) -> None:
    done: list[str] = []

    async def fail() -> None:
        raise ZeroDivisionError

    async def fail_in_a_group() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail)
            nursery.start_soon(fail)

    async def work() -> None:
        await trio.sleep(1)
        done.append("work")

    async with trio.open_nursery() as nursery:
        for body in (fail, fail_in_a_group, work):
            nursery.start_soon(run_contained, body)
    assert done == ["work"]
    assert isinstance(await run_contained(fail), ZeroDivisionError)
    assert isinstance(await run_contained(fail_in_a_group), ExceptionGroup)
    assert await run_contained(work) is None


async def test_cancellation_and_interrupts_travel_on(autojump_clock: MockClock) -> None:
    with trio.move_on_after(1) as scope:
        await run_contained(trio.sleep_forever)
    assert scope.cancelled_caught

    async def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await run_contained(interrupt)


async def test_a_group_is_split(autojump_clock: MockClock) -> None:
    async def both() -> None:
        raise BaseExceptionGroup("both", [ValueError(), KeyboardInterrupt()])

    with pytest.raises(BaseExceptionGroup) as caught:
        await run_contained(both)
    assert [type(e) for e in caught.value.exceptions] == [KeyboardInterrupt]


def test_a_call_gives_what_it_returns_or_what_it_raised() -> None:
    assert call_contained(int, "7") == 7
    assert isinstance(call_contained(int, "seven"), ValueError)


def test_what_is_no_failure_travels_on() -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        call_contained(interrupted)
