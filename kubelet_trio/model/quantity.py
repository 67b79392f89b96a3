"""Kubernetes quantities, exactly: `500m`, `1.5Gi`, `1e3`.

A quantity is an integer number of nano-units, the API's finest unit; anything finer is rounded
up, away from zero, as in the API. There are no floats, so equal quantities compare equal however
they are written.
"""

from __future__ import annotations

import re

NANO = 10**9

_FORMAT = re.compile(r"([+-]?)(\d*)(?:\.(\d*))?(?:([eE])([+-]?\d{1,3})|([numkMGTPE]|[KMGTPE]i)?)")
_DECIMAL_EXPONENT = {
    "n": -9,
    "u": -6,
    "m": -3,
    "": 0,
    "k": 3,
    "M": 6,
    "G": 9,
    "T": 12,
    "P": 15,
    "E": 18,
}
_DECIMAL_SUFFIX = {exponent: suffix for suffix, exponent in _DECIMAL_EXPONENT.items()}
_BINARY_EXPONENT = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_BINARY_SUFFIX = {exponent: suffix for suffix, exponent in _BINARY_EXPONENT.items()}


def parse_quantity(value: object) -> int:
    """Return the quantity in nano-units. Raises ValueError with the text that does not parse."""
    text = str(value)  # manifests may also have a number
    sign, whole, fraction, exponent_mark, exponent, suffix = _match(text).groups("")
    digits = int((whole or "0") + fraction) << _BINARY_EXPONENT.get(suffix, 0)
    decimal = int(exponent) if exponent_mark else _DECIMAL_EXPONENT.get(suffix, 0)
    shift = decimal + 9 - len(fraction)
    scale: int = 10 ** abs(shift)
    # Rounded up, so that "0.1n" is not zero (Quantity rounds away from zero).
    nano = digits * scale if shift >= 0 else -(-digits // scale)
    return -nano if sign == "-" else nano


def canonical_quantity(value: object) -> str:
    """Return a quantity as the API server writes it: `1000m` as `1`, `0.5` as `500m`.

    Raises ValueError like `parse_quantity`.
    """
    return quantity_like(parse_quantity(value), value)


def quantity_like(nano: int, example: object) -> str:
    """Return nano-units as text, with the family of suffixes of `example`: `1Ki`, `1k` or `1e3`.

    It has the largest suffix that leaves a whole number. Binary suffixes are only used for whole
    numbers from 1024 up. Raises ValueError if `example` does not parse.
    """
    groups = _match(str(example)).groups("")
    sign, magnitude = ("-" if nano < 0 else ""), abs(nano)
    # CanonicalizeBytes in apimachinery: below 1024, and with a fraction, binary becomes decimal.
    if groups[5] in _BINARY_EXPONENT and magnitude >= 1024 * NANO and magnitude % NANO == 0:
        units, power = magnitude // NANO, 0
        while units % 1024 == 0 and power < 60:
            units, power = units // 1024, power + 10
        return f"{sign}{units}{_BINARY_SUFFIX.get(power, '')}"
    power = -9
    while magnitude and magnitude % 1000 == 0 and power < 18:
        magnitude, power = magnitude // 1000, power + 3
    if not magnitude:
        return "0"
    if groups[3]:
        return f"{sign}{magnitude}" + (f"e{power}" if power else "")
    return f"{sign}{magnitude}{_DECIMAL_SUFFIX[power]}"


def to_units(nano: int) -> int:
    """Return whole units (bytes, cores), rounded up."""
    return -(-nano // NANO)


def to_milli(nano: int) -> int:
    """Return thousandths (milli-CPU), rounded up."""
    return -(-nano // (NANO // 1000))


def _match(text: str) -> re.Match[str]:
    match = _FORMAT.fullmatch(text)
    if match is None or not (match[2] or match[3]):
        raise ValueError(f"{text!r} is not a quantity")
    return match
