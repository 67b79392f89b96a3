"""Ages and times as kubectl prints them."""

from __future__ import annotations

import pytest

from kubelet_trio.cli.ages import age, human_duration, parse_since


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


def test_no_time_is_an_unknown_age() -> None:
    assert age(None, 0) == "<unknown>"
    assert age("1970-01-01T00:01:00Z", 65.0) == "5s"


@pytest.mark.parametrize(
    ("text", "seconds"), [("5m", 300), ("1h30m", 5400), ("90s", 90), ("1.5s", 1.5), ("200ms", 0.2)]
)
def test_since_reads_durations(text: str, seconds: float) -> None:
    assert parse_since(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "5", "5d", "m", "5m!"])
def test_since_refuses_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="invalid duration"):
        parse_since(text)
