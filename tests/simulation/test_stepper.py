"""The stepper keeps its promises; everything else here stands on them."""

from __future__ import annotations

import threading

import pytest
import trio
import trio_util

from tests.simulation import stepper
from tests.simulation.stepper import LivelockError, Stepper


def test_time_passes_in_steps_only_and_what_is_due_happens_on_the_way() -> None:
    seen: list[float] = []

    async def tell_the_time() -> None:
        while True:
            seen.append(trio.current_time())
            await trio.sleep(1)

    with Stepper() as run:
        run.call(run.nursery.start_soon, tell_the_time)
        run.settle()
        assert (seen, run.now()) == ([0], 0)
        run.sleep(2.5)
        assert (seen, run.now()) == ([0, 1, 2], 2.5)
        run.sleep(0.5)
        assert seen == [0, 1, 2, 3]


def test_a_day_passes_without_a_thread_or_a_wait() -> None:
    threads = threading.active_count()

    async def work() -> None:
        async for _ in trio_util.periodic(10):
            pass

    with Stepper() as run:
        run.call(run.nursery.start_soon, work)
        run.sleep(86400)
        assert run.now() == 86400
        assert threading.active_count() == threads


def test_a_step_returns_or_raises_what_its_function_does() -> None:
    async def fail() -> None:
        await trio.sleep(1)
        raise ValueError("so be it")

    with Stepper() as run:
        assert run.call(trio.current_time) == 0
        with pytest.raises(ValueError, match="so be it"):
            run.take(fail)
        assert run.call(trio.current_time) == 1


def test_a_task_that_crashes_ends_the_run_and_says_so() -> None:
    async def crash() -> None:
        await trio.sleep(1)
        raise ValueError("a bug")

    def run_into_it() -> None:
        with Stepper() as run:
            run.call(run.nursery.start_soon, crash)
            run.sleep(2)

    with pytest.raises(ExceptionGroup):
        run_into_it()


def test_leaving_cancels_what_still_runs() -> None:
    ended: list[str] = []

    async def work() -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.append("work")

    with Stepper() as run:
        run.call(run.nursery.start_soon, work)
        run.settle()
    assert ended == ["work"]


def test_tasks_that_wake_each_other_for_ever_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stepper, "TICKS_PER_STEP", 1000)

    async def spin() -> None:
        while True:  # that is the fault
            await trio.lowlevel.checkpoint()

    def run_into_it() -> None:
        with Stepper() as run:
            run.call(run.nursery.start_soon, spin)
            run.sleep(1)

    with pytest.raises(LivelockError):
        run_into_it()
