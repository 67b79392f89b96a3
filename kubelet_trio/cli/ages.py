"""Times and ages the way kubectl prints them."""

from __future__ import annotations

import datetime
import re

_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(h|ms|m|s)")


def human_duration(seconds: float) -> str:
    """Return a duration in at most two units, e.g. `90s`, `5m10s`, `3h`, `2d4h`.

    Source: HumanDuration in k8s.io/apimachinery/pkg/util/duration.
    """
    whole = int(seconds)
    if seconds <= -2:
        return "<invalid>"
    if whole < 120:
        return f"{max(whole, 0)}s"
    minutes, rest = divmod(whole, 60)
    if minutes < 10:
        return _two(minutes, "m", rest, "s")
    if minutes < 180:
        return f"{minutes}m"
    hours, minutes = divmod(minutes, 60)
    if hours < 8:
        return _two(hours, "h", minutes, "m")
    if hours < 48:
        return f"{hours}h"
    days, hours = divmod(hours, 24)
    if days < 8:
        return _two(days, "d", hours, "h")
    if days < 730:
        return f"{days}d"
    years, days = divmod(days, 365)
    return _two(years, "y", days, "d") if years < 8 else f"{years}y"


def _two(first: int, unit: str, second: int, smaller: str) -> str:
    return f"{first}{unit}{second}{smaller}" if second else f"{first}{unit}"


def parse_time(text: str | None) -> float | None:
    """Return an API time as Unix seconds; None for none."""
    return datetime.datetime.fromisoformat(text).timestamp() if text else None


def age(text: str | None, now: float) -> str:
    """Return how long ago an API time is, `<unknown>` without one."""
    then = parse_time(text)
    return "<unknown>" if then is None else human_duration(now - then)


def long_time(text: str | None) -> str:
    """Return an API time as kubectl describe shows it: RFC 1123, local zone."""
    if not text:
        return ""
    return datetime.datetime.fromisoformat(text).astimezone().strftime("%a, %d %b %Y %H:%M:%S %z")


def parse_since(text: str) -> float:
    """Read `5m`, `1h30m`, `20s`. Raises ValueError."""
    position, total = 0, 0.0
    while match := _DURATION.match(text, position):
        total += float(match[1]) * _UNITS[match[2]]
        position = match.end()
    if not text or position != len(text):
        raise ValueError(f'invalid duration "{text}", expect e.g. 5m or 1h30m')
    return total
