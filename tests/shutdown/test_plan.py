"""In which order pods end with the node."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubelet_trio.shutdown import ShutdownPeriod, shutdown_periods
from kubelet_trio.shutdown.plan import shutdown_groups
from tests.pressure.make import pod

CRITICAL = 2_000_000_000


@pytest.mark.parametrize(
    ("whole", "critical", "expected"),
    [
        (0, 0, ()),
        (30, 10, ((0, 20), (CRITICAL, 10))),
        (30, 0, ((0, 30), (CRITICAL, 0))),
        (10, 30, ()),
    ],
)
def test_critical_pods_have_the_last_part(
    whole: float, critical: float, expected: tuple[tuple[int, int], ...]
) -> None:
    assert shutdown_periods(whole, critical) == tuple(ShutdownPeriod(*each) for each in expected)


def test_periods_by_priority_stand_for_the_others() -> None:
    given = [ShutdownPeriod(1000, 20), ShutdownPeriod(0, 60), ShutdownPeriod(100, 30)]
    assert [p.priority for p in shutdown_periods(30, 10, given)] == [0, 100, 1000]


def test_a_pod_belongs_to_the_highest_period_not_above_it() -> None:
    periods = shutdown_periods(0, 0, [ShutdownPeriod(n, n + 1) for n in (10, 100, 1000)])
    priorities = {"below": 1, "none": None, "ten": 10, "more": 99, "hundred": 100, "top": 5000}
    pods = [pod(name, priority=priority) for name, priority in priorities.items()]
    groups = shutdown_groups(periods, pods)
    assert [(g.period.priority, [uid for uid, _ in g.pods]) for g in groups] == [
        (10, ["below", "none", "ten", "more"]),
        (100, ["hundred"]),
        (1000, ["top"]),
    ]


def test_a_group_without_pods_is_not_waited_for() -> None:
    groups = shutdown_groups(shutdown_periods(30, 10), [pod("a", priority=CRITICAL + 1000)])
    assert [group.period.priority for group in groups] == [CRITICAL]


@given(
    st.sets(st.integers(-100, 100), min_size=1),
    st.lists(st.none() | st.integers(-200, 200), max_size=10),
)
def test_every_pod_ends_once_and_lower_ones_first(
    bounds: set[int], priorities: list[int | None]
) -> None:
    periods = shutdown_periods(0, 0, [ShutdownPeriod(bound, 1) for bound in bounds])
    pods = [pod(str(n), priority=priority) for n, priority in enumerate(priorities)]
    groups = shutdown_groups(periods, pods)
    order = [int(uid) for group in groups for uid, _ in group.pods]
    assert sorted(order) == list(range(len(pods)))
    tops = [max(priorities[int(uid)] or 0 for uid, _ in group.pods) for group in groups]
    assert tops == sorted(tops)
