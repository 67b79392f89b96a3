"""Times and ages the way kubectl prints them."""

from __future__ import annotations

import datetime

from kubelet_trio.durations import human_duration, parse_duration


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
    """Read the duration of `--since`, above 0 or 0. Raises ValueError."""
    try:
        seconds = float(parse_duration(text))
    except ValueError as exc:
        raise ValueError(f"{exc}, expect e.g. 5m or 1h30m") from None
    if seconds < 0:
        raise ValueError(f'invalid duration "{text}", expect e.g. 5m or 1h30m')
    return seconds
