"""Numbers in what strangers send: bounded before Python reads them.

`int` takes underscores and digits of every script, and raises for more than 4,300 digits.
"""

from __future__ import annotations

_MOST_DIGITS = 19  # of a signed integer of 64 bits


def parse_decimal(text: str, bits: int = 64) -> int | None:
    """Return a signed integer as Go's ParseInt reads it; None for what is none or too large."""
    sign, digits = (text[0], text[1:]) if text[:1] in ("+", "-") else ("", text)
    if not (digits.isascii() and digits.isdigit()):
        return None
    digits = digits.lstrip("0") or "0"
    if len(digits) > _MOST_DIGITS:
        return None
    number = int(f"{sign}{digits}")
    return number if -(2 ** (bits - 1)) <= number < 2 ** (bits - 1) else None
