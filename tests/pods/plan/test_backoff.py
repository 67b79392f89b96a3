"""How long failing containers and pulls wait, as plain arithmetic."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubelet_trio.pods.plan.backoff import BackOffEntry, BackOffPolicy, BackOffTable

KEY = ("uid-1", "web", "abc")


def delays(policy: BackOffPolicy, *, runs: float, rounds: int) -> list[float]:
    """The waits of a container that always runs for `runs` s and then fails."""
    back_off, now, waits = BackOffTable(policy), 1000.0, []
    for _ in range(rounds):
        ended = now + runs
        is_held = policy.ends(back_off.get(KEY), ended, ended) is not None
        wait = back_off[KEY].delay if is_held else 0.0
        waits.append(wait)
        now = ended + wait
        assert policy.ends(back_off.get(KEY), ended, now) is None
        back_off.next(KEY, now, since=ended)
    return waits


def test_the_first_restart_comes_at_once_and_the_waits_double_to_the_cap() -> None:
    assert delays(BackOffPolicy(), runs=1, rounds=9) == [0, 10, 20, 40, 80, 160, 300, 300, 300]


def test_base_and_cap_are_configurable() -> None:
    assert delays(BackOffPolicy(base=1, cap=5), runs=1, rounds=6) == [0, 1, 2, 4, 5, 5]


def test_a_cap_below_the_base_lowers_the_base() -> None:
    assert delays(BackOffPolicy(cap=3), runs=1, rounds=4) == [0, 3, 3, 3]


def test_a_container_that_ran_for_ten_minutes_starts_over_at_once() -> None:
    assert delays(BackOffPolicy(), runs=601, rounds=4) == [0, 0, 0, 0]
    assert delays(BackOffPolicy(), runs=600, rounds=4) == [0, 10, 20, 40]


def test_the_reset_is_never_shorter_than_twice_the_cap() -> None:
    assert BackOffPolicy(cap=1000).reset_after == 2000
    assert BackOffPolicy(cap=10).reset_after == 600


@pytest.mark.parametrize("bad", [{"base": 0}, {"cap": 0}, {"base": -1}])
def test_a_back_off_of_nothing_is_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="above 0"):
        BackOffPolicy(**bad)  # type: ignore[arg-type]


def test_a_wall_clock_set_back_holds_nothing_for_longer_than_the_cap() -> None:
    policy, entry = BackOffPolicy(), BackOffEntry(10.0, 5000.0)
    assert policy.ends(entry, since=5000.0, now=1000.0) is None
    assert policy.ends(entry, since=5000.0, now=4999.0) == 5010.0


@pytest.mark.parametrize(
    ("restarts", "expected"), [(1, 10), (2, 20), (5, 160), (6, 300), (100_000, 300)]
)
def test_a_forgotten_back_off_is_told_from_the_restart_count(
    restarts: int, expected: float
) -> None:
    assert BackOffPolicy().seeded(restarts, 7.0) == BackOffEntry(expected, 7.0)


def test_no_back_off_is_told_of_a_container_that_never_restarted_or_if_not_asked_for() -> None:
    assert BackOffPolicy().seeded(0, 7.0) is None
    assert BackOffPolicy(seed=False).seeded(3, 7.0) is None


def test_a_failed_pull_waits_from_the_failure_and_says_what_failed() -> None:
    back_off, key = BackOffTable(), ("uid-1", "image:1")
    assert not back_off.is_active(key, 100.0)
    back_off.next(key, 100.0, note="ErrImagePull: no such host")
    assert back_off.is_active(key, 109.9)
    assert not back_off.is_active(key, 110.0)
    assert back_off[key].note == "ErrImagePull: no such host"
    back_off.next(key, 110.0)
    assert back_off.is_active(key, 129.9)
    back_off.reset(key)
    back_off.reset(key)
    assert not back_off.is_active(key, 129.9)


def test_a_pod_that_is_gone_takes_its_back_offs_along() -> None:
    back_off = BackOffTable()
    other = ("uid-2", "web", "abc")
    back_off.next(KEY, 1.0)
    back_off.put(other, BackOffEntry(10.0, 1.0))
    assert set(back_off) == {KEY, other}
    back_off.forget("uid-1")
    assert dict(back_off) == {other: BackOffEntry(10.0, 1.0)}
    assert len(back_off) == 1


@given(
    base=st.floats(0.1, 1000),
    cap=st.floats(0.1, 1000),
    runs=st.lists(st.floats(0, 3000), min_size=1, max_size=20),
)
def test_a_wait_is_bounded_and_grows_until_it_starts_over(
    base: float, cap: float, runs: list[float]
) -> None:
    policy = BackOffPolicy(base, cap)
    entry: BackOffEntry | None = None
    now = 1000.0
    for run in runs:
        ended = now + run
        end = policy.ends(entry, ended, ended)
        now = ended if end is None else end
        assert now - ended <= policy.cap * 1.0000001
        after = policy.next(entry, ended, now)
        assert policy.base <= after.delay <= policy.cap
        if entry is not None and not policy.has_expired(entry, ended):
            assert after.delay >= entry.delay
        entry = after
