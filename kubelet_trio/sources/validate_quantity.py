"""Validation of quantities."""

from __future__ import annotations

from kubelet_trio.model import parse_quantity
from kubelet_trio.sources.field_errors import Errors


def quantity(errors: Errors, path: str, text: str) -> int | None:
    """Return a quantity that must not be negative, in nano-units; None if it is no good."""
    try:
        amount = parse_quantity(text)
    except ValueError:
        errors.invalid(path, text, "must be a quantity such as 500m, 1.5 or 64Mi")
        return None
    if amount < 0:
        errors.invalid(path, text, "must be greater than or equal to 0")
        return None
    if amount >= 2**63 * 10**9:
        errors.invalid(path, text, "is larger than any machine")
        return None
    return amount
