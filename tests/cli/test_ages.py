"""Ages and times as kubectl prints them."""

from __future__ import annotations

import pytest

from kubelet_trio.cli.ages import age, parse_since


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
    with pytest.raises(ValueError, match='duration "'):
        parse_since(text)
