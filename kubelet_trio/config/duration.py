"""Go's durations, as `metav1.Duration` reads and writes them: `1h30m`, `20s`, `100ms`.

A `Duration` is a float of seconds that prints the Go way, so the rest of the agent
reads a plain number and what goes out again looks as it came in.
"""

from __future__ import annotations

import re

_UNITS = {"ns": 1, "us": 10**3, "µs": 10**3, "μs": 10**3, "ms": 10**6}
_UNITS |= {"s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}
_TERM = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|μs|ms|s|m|h)")
_LIMIT = 2**63  # time.Duration is an int64 of nanoseconds


class Duration(float):
    """Seconds, printed as Go prints a time.Duration."""

    __slots__ = ()

    def __str__(self) -> str:
        return format_duration(self)

    def __repr__(self) -> str:
        return f"Duration({format_duration(self)!r})"


def parse_duration(text: str) -> Duration:
    """Read a Go duration. Raises ValueError with Go's wording."""
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
