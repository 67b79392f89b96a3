"""Durations as Kubernetes reads and writes them; seconds are plain floats.

Go's `time.Duration`, as in `metav1.Duration`, events and messages: `1h30m0s`, `100ms`. And the
coarser ages of kubectl: `5m10s`, `3h`. It imports only `re`, because the client commands, which
load no models, use it too.
"""

from __future__ import annotations

import re

# Two letters for micro, as in Go: U+00B5 (the micro sign) and U+03BC (the Greek letter).
_UNITS = {"ns": 1, "us": 10**3, "µs": 10**3, "μs": 10**3, "ms": 10**6}
_UNITS |= {"s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}
_TERM = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|μs|ms|s|m|h)")
_LIMIT = 2**63  # time.Duration is an int64 of nanoseconds
_LONGEST = 100  # characters of a text; Go has no limit, but no real duration is so long


class Duration(float):
    """Seconds, printed as Go prints a time.Duration."""

    __slots__ = ()

    def __str__(self) -> str:
        return format_duration(self)

    def __repr__(self) -> str:
        return f"Duration({format_duration(self)!r})"


def parse_duration(text: str) -> Duration:
    """Read a Go duration. Raises ValueError with Go's wording."""
    if len(text) > _LONGEST:
        raise ValueError(f'invalid duration "{text[:_LONGEST]}..."')
    sign, rest = (-1, text[1:]) if text.startswith("-") else (1, text.removeprefix("+"))
    if rest == "0":
        return Duration(0)
    nanoseconds = 0
    position = 0
    while match := _TERM.match(rest, position):
        nanoseconds += _nanoseconds(match[1], _UNITS[match[2]])
        position = match.end()
    if not rest or position != len(rest):
        if re.fullmatch(r"[\d.]+", rest):
            raise ValueError(f'missing unit in duration "{text}"')
        raise ValueError(f'invalid duration "{text}"')
    if nanoseconds >= _LIMIT:
        raise ValueError(f'invalid duration "{text}"')
    return Duration(sign * nanoseconds / 10**9)


def _nanoseconds(number: str, unit: int) -> int:
    whole, _, fraction = number.partition(".")
    part = int(fraction) * unit // 10 ** len(fraction) if fraction else 0
    return int(whole or "0") * unit + part


def format_duration(seconds: float) -> str:
    """Write seconds as Go does: `1h30m0s`, `20s`, `1.5s`, `100ms`, `0s`."""
    nanoseconds = round(abs(seconds) * 10**9)
    sign = "-" if seconds < 0 and nanoseconds else ""
    if nanoseconds == 0:
        return "0s"
    if nanoseconds < 10**9:
        unit = next(u for u in ("ms", "µs", "ns") if nanoseconds >= _UNITS[u])
        return f"{sign}{_decimal(nanoseconds, _UNITS[unit])}{unit}"
    minutes, rest = divmod(nanoseconds, 60 * 10**9)
    hours, minutes = divmod(minutes, 60)
    text = f"{_decimal(rest, 10**9)}s"
    if hours:
        return f"{sign}{hours}h{minutes}m{text}"
    return f"{sign}{minutes}m{text}" if minutes else f"{sign}{text}"


def _decimal(value: int, unit: int) -> str:
    whole, rest = divmod(value, unit)
    if not rest:
        return str(whole)
    digits = len(str(unit)) - 1
    return f"{whole}.{rest:0{digits}d}".rstrip("0")


def format_milliseconds(seconds: float) -> str:
    """Write seconds as Go does, cut to milliseconds (`Truncate(time.Millisecond)`)."""
    # 1.234 * 1000 is 1233.99... in binary: without the addition it would lose a millisecond.
    return format_duration(int(seconds * 1000 + 1e-6) / 1000)


def human_duration(seconds: float) -> str:
    """Write an age in at most two units, e.g. `90s`, `5m10s`, `3h`, `2d4h`.

    Source: HumanDuration in k8s.io/apimachinery/pkg/util/duration.
    """
    whole = int(seconds)
    # Up to two seconds in the future are tolerated: the clocks of two machines may differ.
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


def span_words(since: float | None, until: float | None, now: float) -> str:
    """Return `for 22s, again in 18s`: how long something lasts, and when it is tried again."""
    lasted = f"for {human_duration(now - since)}" if since is not None and since <= now else ""
    ahead = f"again in {human_duration(until - now)}" if until is not None and until > now else ""
    return ", ".join(part for part in (lasted, ahead) if part)
