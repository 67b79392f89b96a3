"""Durations read and print as Go's do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubelet_trio.config import Duration, format_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds", "printed"),
    [
        ("20s", 20, "20s"),
        ("1m", 60, "1m0s"),
        ("1h30m", 5400, "1h30m0s"),
        ("100ms", 0.1, "100ms"),
        ("1.5s", 1.5, "1.5s"),
        (".5s", 0.5, "500ms"),
        ("1.s", 1, "1s"),
        ("0", 0, "0s"),
        ("-0", 0, "0s"),
        ("-1m", -60, "-1m0s"),
        ("+2s", 2, "2s"),
        ("3us", 3e-06, "3µs"),
        ("3µs", 3e-06, "3µs"),
        ("7ns", 7e-09, "7ns"),
        ("4h", 14400, "4h0m0s"),
        ("1h1ms", 3600.001, "1h0m0.001s"),
    ],
)
def test_a_duration_reads_and_prints_as_in_go(text: str, seconds: float, printed: str) -> None:
    assert parse_duration(text) == seconds
    assert str(parse_duration(text)) == printed


@pytest.mark.parametrize("text", ["", "s", "5", "1.2", "5 s", "5d", "-", "1s-2s", "..s", "1e3s"])
def test_what_go_refuses_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"in duration|invalid duration"):
        parse_duration(text)


def test_a_duration_beyond_an_int64_of_nanoseconds_is_refused() -> None:
    with pytest.raises(ValueError, match="invalid duration"):
        parse_duration("9999999h")


@given(st.integers(min_value=-(10**15), max_value=10**15))
def test_what_is_printed_reads_back(microseconds: int) -> None:
    duration = Duration(microseconds / 10**6)
    assert parse_duration(format_duration(duration)) == pytest.approx(
        float(duration), rel=1e-12, abs=1e-9
    )
