"""Delays grow to a cap and start over after a success or a long quiet time."""

from __future__ import annotations

import pytest

from kubelet_trio.model import Backoff, backoff_delay


def test_delays_double_with_jitter_and_begin_anew() -> None:
    backoff = Backoff(0.8, 30, jitter=1.0, reset_after=120, rand=lambda: 0.5)
    delays, now = [], 0.0
    for _ in range(8):
        delays.append(backoff.next_delay(now))
        now += delays[-1]
    assert delays == pytest.approx([1.2, 2.4, 4.8, 9.6, 19.2, 38.4, 45, 45])
    assert backoff.next_delay(now + 121) == pytest.approx(1.2)


def test_a_success_begins_anew() -> None:
    backoff = Backoff(1, 10)
    assert backoff.is_reset
    assert [backoff.next_delay() for _ in range(5)] == [1, 2, 4, 8, 10]
    assert not backoff.is_reset
    backoff.reset()
    assert backoff.is_reset
    assert backoff.next_delay() == 1


def test_another_factor() -> None:
    backoff = Backoff(1, 3, factor=1.6)
    assert [backoff.next_delay() for _ in range(4)] == pytest.approx([1, 1.6, 2.56, 3])


def test_a_thing_that_failed_for_years_waits_for_the_cap() -> None:
    assert backoff_delay(0.5, 30, 10**9) == 30
