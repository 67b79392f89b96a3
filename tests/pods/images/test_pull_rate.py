"""The bucket of tokens that image pulls take from."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kubelet_trio.pods.images.pull_rate import PullRate


def test_a_burst_goes_at_once_and_the_rest_as_tokens_come() -> None:
    rate = PullRate(5, 10)
    assert [rate.try_take(100.0) for _ in range(12)] == [True] * 10 + [False] * 2
    assert not rate.try_take(100.1)
    assert rate.try_take(100.2)
    assert not rate.try_take(100.2)
    assert [rate.try_take(200.0) for _ in range(11)] == [True] * 10 + [False]


def test_no_rate_is_no_limit() -> None:
    rate = PullRate(0, 1)
    assert all(rate.try_take(0.0) for _ in range(1000))


@given(
    st.floats(0.1, 50),
    st.integers(1, 20),
    st.lists(st.floats(0, 3), max_size=200),
)
def test_never_more_than_the_burst_and_what_came_since(
    qps: float, burst: int, gaps: list[float]
) -> None:
    rate, now, taken = PullRate(qps, burst), 0.0, 0
    for gap in gaps:
        now += gap
        taken += rate.try_take(now)
        assert taken <= burst + qps * now + 1e-3
