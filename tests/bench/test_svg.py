"""Charts by hand: everything that is measured is within them."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.svg import Line, Panel, ceiling, draw


@pytest.mark.parametrize(
    ("value", "top"), [(0, 1), (0.3, 0.4), (1, 1), (1.1, 2), (5, 8), (9, 10), (41.3, 80)]
)
def test_an_axis_ends_at_a_round_number(value: float, top: float) -> None:
    assert ceiling(value) == pytest.approx(top)


@given(st.floats(1e-6, 1e9))
def test_an_axis_reaches_its_greatest_value(value: float) -> None:
    assert ceiling(value) >= value * (1 - 1e-6)


@given(st.lists(st.none() | st.floats(0, 1e6), min_size=1, max_size=30))
def test_every_value_is_drawn_within_the_panel(values: list[float | None]) -> None:
    places = tuple(f"v{number}" for number in range(len(values)))
    first = Line("a", "blue", (1.0,) * len(values))
    text = draw([Panel("t", places, (first, Line("b", "red", tuple(values))))], "legend")
    marks = re.findall(r'<circle cx="([\d.-]+)" cy="([\d.-]+)" r="3.5" fill="red"', text)
    assert len(marks) == sum(value is not None for value in values)
    assert all(0 < float(x) < 400 and 0 < float(y) < 250 for x, y in marks)


def test_what_is_far_above_the_first_line_is_a_number_at_the_top() -> None:
    lines = (Line("here", "blue", (0.2,)), Line("peer", "red", (50.2,)))
    text = draw([Panel("t", ("v1",), lines)], "legend")
    assert ">0.2<" in text  # the top of the axis
    assert ">50.2<" in text


def test_text_is_escaped() -> None:
    text = draw([Panel("a < b & c", ("<v>",), (Line("x", "blue", (1.0,)),))], "<legend>")
    assert "a < b & c" in "".join(ElementTree.fromstring(text).itertext())


def test_few_of_many_places_are_labelled_and_the_last_one_is() -> None:
    places = tuple(f"v{number}" for number in range(35))
    text = draw([Panel("t", places, (Line("x", "blue", (1.0,) * 35),))], "legend")
    labels = re.findall(r'font-size="9">(v\d+)<', text)
    assert len(labels) <= 10
    assert labels[-1] == "v34"
