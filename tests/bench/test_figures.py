"""A figure is worse beyond what repeated runs deviate by, and not for one sample's sake."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.figures import FIGURES, Expected, Figure, Run, Samples, is_amount, judge, learn, merge

TEN = Expected(1.0, 0.1)


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ((1.0, 1.02, 0.98, 1.01), "same"),
        ((1.08, 1.09, 1.09, 1.1), "same"),  # within the tolerance
        ((1.2, 1.22, 1.18, 1.21), "worse"),
        ((1.2,), "worse"),
        ((0.8, 0.82, 0.79, 0.81), "better"),
        ((0.9, 0.95, 1.6, 1.7), "same"),  # half of it disturbed
        ((1.0, 1.0, 1.0, 9.0), "same"),  # one sample disturbed
    ],
)
def test_a_verdict_needs_the_median_beyond_the_tolerance_and_most_samples_with_it(
    ratios: tuple[float, ...], verdict: str
) -> None:
    assert judge(Samples(ratios), TEN) == verdict


def test_a_machine_that_is_slow_for_both_changes_nothing() -> None:
    calm = Samples((0.2, 0.21, 0.2), (0.2, 0.2, 0.2))
    loaded = Samples((0.8, 2.1, 0.4), (0.8, 2.0, 0.4))
    assert judge(calm, TEN) == judge(loaded, TEN) == "same"
    assert loaded.middle == pytest.approx(1.0)


def test_a_floor_of_nothing_gives_no_ratio() -> None:
    assert Samples((1.0, 2.0), (0.0, 1.0)).compared == (2.0,)


def test_values_without_a_floor_are_compared_as_they_are() -> None:
    assert Samples((40.0, 42.0)).compared == (40.0, 42.0)


def test_a_tolerance_is_learned_from_how_runs_deviate() -> None:
    calm: list[Run] = [{"crowd.ready": Samples((v,), (1.0,))} for v in (1.0, 1.01, 0.99)]
    rough: list[Run] = [{"crowd.ready": Samples((v,), (1.0,))} for v in (1.0, 1.2, 0.9)]
    least = FIGURES["crowd.ready"].least
    assert learn(calm)["crowd.ready"].tolerance == pytest.approx(least)
    assert learn(rough)["crowd.ready"].tolerance == pytest.approx(0.4)
    assert learn(rough)["crowd.ready"].value == 1.0


def test_nothing_is_learned_from_one_run() -> None:
    with pytest.raises(ValueError, match="two runs"):
        learn([{"death": Samples((1.0,))}])


def test_a_figure_that_a_run_lacks_is_learned_from_the_others() -> None:
    learned = learn([{}, {"rest.rss": Samples((40.0,))}, {"rest.rss": Samples((41.0,))}])
    assert set(learned) == {"rest.rss"}
    assert learned["rest.rss"].value == 40.5


def test_runs_are_merged_sample_by_sample() -> None:
    runs: list[Run] = [
        {"death": Samples((0.2,), (0.1,)), "rest.rss": Samples((40.0,))},
        {"death": Samples((0.3,), (0.2,))},
    ]
    assert merge(runs) == {
        "death": Samples((0.2, 0.3), (0.1, 0.2)),
        "rest.rss": Samples((40.0,)),
    }


def test_a_share_or_an_amount_is_the_least_tolerance() -> None:
    assert Figure("", "s", has_floor=True, least=0.1).tolerance(2.0, 0.0) == pytest.approx(0.2)
    fixed = Figure("", "MB", has_floor=False, least=0.5, relative=False)
    assert fixed.tolerance(40.0, 0.0) == 0.5
    assert fixed.tolerance(40.0, 2.0) == 4.0


@given(st.lists(st.floats(0.5, 2.0), min_size=2, max_size=6))
def test_no_run_that_a_baseline_was_learned_from_is_worse(middles: list[float]) -> None:
    runs: list[Run] = [{"death": Samples((middle,), (1.0,))} for middle in middles]
    expected = learn(runs)["death"]
    assert {judge(run["death"], expected) for run in runs} == {"same"}


@pytest.mark.parametrize(
    ("found", "is_one"),
    [
        (0, True),
        (1.5, True),
        (-1, False),
        (True, False),
        ("1", False),
        (None, False),
        (float("nan"), False),
        (float("inf"), False),
    ],
)
def test_amounts(found: object, is_one: bool) -> None:
    assert is_amount(found) is is_one
