from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from kubelet_trio.supervision import RestartPolicy, Strategy
from kubelet_trio.supervision.policy import CrashBackoff, RestartBudget, restart_group


def test_delays_double_from_the_base() -> None:
    budget = RestartBudget(limit=4, window=60, base=0.5, cap=30)
    assert [budget.next_delay(now) for now in (0, 1, 2, 3)] == [0.5, 1, 2, 4]


def test_a_delay_is_never_longer_than_the_cap() -> None:
    budget = RestartBudget(limit=10, window=60, base=1, cap=3)
    assert [budget.next_delay(now) for now in range(4)] == [1, 2, 3, 3]


def test_the_budget_is_used_up_after_the_limit() -> None:
    budget = RestartBudget(limit=2, window=60)
    assert [budget.next_delay(now) is None for now in (0, 1, 2)] == [False, False, True]


def test_without_a_limit_nothing_is_given_up_and_the_delay_stays_at_the_cap() -> None:
    budget = RestartPolicy(limit=None, cap=10).budget()
    now, delays = 0.0, []
    for _ in range(100):
        delay = budget.next_delay(now)
        assert delay is not None
        delays.append(delay)
        now += delay
    assert set(delays[10:]) == {10.0}


def test_a_restart_older_than_the_window_no_longer_counts() -> None:
    budget = RestartBudget(limit=2, window=60, base=1)
    assert [budget.next_delay(now) for now in (0, 30, 60.5)] == [1, 2, 2]


def test_a_restart_exactly_as_old_as_the_window_still_counts() -> None:
    budget = RestartBudget(limit=1, window=60)
    budget.next_delay(0)
    assert budget.next_delay(60) is None


def test_a_limit_of_none_means_no_restart() -> None:
    assert RestartBudget(limit=0).next_delay(0) is None


def test_budgets_of_one_policy_are_separate() -> None:
    policy = RestartPolicy(limit=1, within=10, base=2, cap=3)
    assert policy.budget().next_delay(0) == 2
    assert policy.budget().next_delay(0) == 2


@given(
    limit=st.integers(0, 6),
    window=st.integers(1, 100),
    gaps=st.lists(st.integers(0, 200), max_size=30),
)
def test_no_window_ever_holds_more_restarts_than_the_limit(
    limit: int, window: int, gaps: list[int]
) -> None:
    budget = RestartBudget(limit=limit, window=window)
    now, granted = 0.0, list[float]()
    for gap in gaps:
        now += gap
        delay = budget.next_delay(now)
        if delay is not None:
            assert 0 < delay <= budget.cap
            granted.append(now)
    for start in granted:
        assert sum(1 for at in granted if start <= at <= start + window) <= limit


def test_a_crash_backoff_doubles_to_its_cap_and_stays_there() -> None:
    backoff = CrashBackoff(base=1, cap=8, reset_after=60)
    assert [backoff.next_delay(0) for _ in range(6)] == [1, 2, 4, 8, 8, 8]


def test_a_crash_backoff_starts_anew_after_a_long_life() -> None:
    backoff = CrashBackoff(base=1, cap=8, reset_after=60)
    assert [backoff.next_delay(lived) for lived in (0, 0, 60, 61, 0)] == [1, 2, 4, 1, 2]


@given(crashes=st.integers(1, 3000))
def test_a_crash_backoff_never_overflows(crashes: int) -> None:
    backoff = RestartPolicy(base=0.5, cap=30).backoff()
    delays = [backoff.next_delay(0) for _ in range(crashes)]
    assert all(earlier <= later <= 30 for earlier, later in pairwise(delays))


def test_each_strategy_names_its_group() -> None:
    groups = {strategy: list(restart_group(strategy, 1, 4)) for strategy in Strategy}
    assert groups == {
        Strategy.ONE_FOR_ONE: [1],
        Strategy.REST_FOR_ONE: [1, 2, 3],
        Strategy.ONE_FOR_ALL: [0, 1, 2, 3],
    }
