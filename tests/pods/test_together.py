from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from kubelet_trio.cri import RuntimeCallError, RuntimeUnavailableError
from kubelet_trio.pods.together import run_lingering, run_together


async def test_one_failing_step_does_not_cut_its_neighbours_short(
    autojump_clock: MockClock,
) -> None:
    done: list[str] = []

    async def fail() -> None:
        raise RuntimeUnavailableError("StopContainer", "gone")

    async def work() -> None:
        await trio.sleep(10)
        done.append("work")

    with pytest.raises(RuntimeUnavailableError):
        await run_together([fail, work])
    assert done == ["work"]


async def test_a_call_in_flight_gets_its_lingering_time(autojump_clock: MockClock) -> None:
    done: list[str] = []

    async def call() -> None:
        await trio.sleep(3)
        done.append("call")

    with trio.move_on_after(1) as outer:
        await run_lingering(call, 5)
    assert done == ["call"]
    assert outer.cancelled_caught
    assert trio.current_time() == 3


async def test_a_hung_call_is_cut_after_its_lingering_time(autojump_clock: MockClock) -> None:
    with trio.move_on_after(1) as outer:
        await run_lingering(trio.sleep_forever, 5)
    assert outer.cancelled_caught
    assert trio.current_time() == 6


async def test_the_error_of_a_call_comes_out_alone(autojump_clock: MockClock) -> None:
    async def fail() -> None:
        await trio.sleep(1)
        raise RuntimeCallError("StopPodSandbox", "no")

    with pytest.raises(RuntimeCallError, match="no"):
        await run_lingering(fail, 5)


async def test_an_undisturbed_call_ends_when_it_ends(autojump_clock: MockClock) -> None:
    async def call() -> None:
        await trio.sleep(100)

    await run_lingering(call, 5)
    assert trio.current_time() == 100


async def test_an_error_that_was_expected_comes_out_alone_whatever_its_kind(
    autojump_clock: MockClock,
) -> None:
    async def fail() -> None:
        raise OSError(28, "No space left on device")

    async def work() -> None:
        await trio.sleep(10)

    with pytest.raises(OSError, match="No space left"):
        await run_together([fail, work], (RuntimeCallError, OSError))
    assert trio.current_time() == 10
