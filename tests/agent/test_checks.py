"""The check `syncloop`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from kubelet_trio.agent.checks import overdue
from tests.agent.node import Node


@pytest.mark.parametrize(
    ("turned", "now", "sync_period", "problem"),
    [
        (None, 1000, 60, None),  # nothing was delivered yet
        (0, 300, 60, None),
        (0, 301, 60, "301 s ago, more than 300 s"),
        (0, 301, 10, "301 s ago, more than 300 s"),
        (0, 400, 200, None),
        (0, 401, 200, "401 s ago, more than 400 s"),
    ],
)
def test_the_last_turn_may_be_two_periods_or_five_minutes_old(
    turned: float | None, now: float, sync_period: float, problem: str | None
) -> None:
    told = overdue(turned, now, sync_period)
    assert told is None if problem is None else problem in str(told)


async def test_an_agent_with_nothing_to_do_is_well(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with Node(tmp_path).running() as agent:
        await trio.sleep(3600)
        assert agent.check_functions()["syncloop"]() is None


async def test_a_merge_that_takes_no_turns_is_told(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stuck(
        *_: object, on_applied: Callable[[], None], task_status: trio.TaskStatus[None], **__: object
    ) -> None:
        on_applied()
        task_status.started()
        await trio.sleep_forever()

    monkeypatch.setattr("kubelet_trio.agent.desired.run_merge", stuck)
    async with Node(tmp_path).running() as agent:
        check = agent.check_functions()["syncloop"]
        assert check() is None
        await trio.sleep(301)
        assert "the sources were last merged" in str(check())
