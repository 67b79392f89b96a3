"""Rounds of cleaning up that take too long."""

from __future__ import annotations

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from kubelet_trio.model import housekeeping_round


@pytest.mark.parametrize(("seconds", "is_told"), [(0, False), (10, False), (10.5, True)])
async def test_a_round_that_takes_too_long_is_told(
    seconds: float, is_told: bool, autojump_clock: MockClock
) -> None:
    with capture_logs() as logs, housekeeping_round("directories"):
        await trio.sleep(seconds)
    assert [(log["what"], log["seconds"]) for log in logs] == [("directories", seconds)] * is_told
