"""Durations read and print as Go's do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubelet_trio.durations import (
    Duration,
    format_duration,
    format_milliseconds,
    human_duration,
    parse_duration,
)


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


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0, "0s"),
        (10, "10s"),
        (80, "1m20s"),
        (300, "5m0s"),
        (3600, "1h0m0s"),
        (3725, "1h2m5s"),
        (0.0004, "0s"),
        (0.9879, "987ms"),
        (1.234, "1.234s"),
        (1.5, "1.5s"),
        (62.345, "1m2.345s"),
        (3600.05, "1h0m0.05s"),
    ],
)
def test_milliseconds_are_the_least_that_messages_show(seconds: float, expected: str) -> None:
    assert format_milliseconds(seconds) == expected


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-3, "<invalid>"),
        (-1.5, "0s"),
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (310, "5m10s"),
        (600, "10m"),
        (10799, "179m"),
        (10800, "3h"),
        (11160, "3h6m"),
        (8 * 3600, "8h"),
        (47 * 3600 + 59, "47h"),
        (52 * 3600, "2d4h"),
        (72 * 3600, "3d"),
        (9 * 86400, "9d"),
        (729 * 86400, "729d"),
        (731 * 86400, "2y1d"),
        (3000 * 86400, "8y"),
    ],
)
def test_a_duration_is_printed_as_by_kubectl(seconds: float, text: str) -> None:
    assert human_duration(seconds) == text
