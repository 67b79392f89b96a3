from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from kubelet_trio.cri import RuntimeCallError, RuntimeUnavailableError
from kubelet_trio.pods.steps.concurrency import run_together


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
