"""Collects field errors in the API server's words, in the order found."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from kubelet_trio.model import parse_quantity
from kubelet_trio.sources.errors import FieldError, quote

_TOO_LARGE = 2**63 * 10**9  # nano-units: what an int64 of whole units cannot hold


class FieldErrors:
    """Every error found so far. The texts are those of apimachinery's field.Error."""

    def __init__(self) -> None:
        self.found: list[FieldError] = []

    def required(self, path: str, detail: str = "") -> None:
        self._add(path, "Required value", detail)

    def invalid(self, path: str, value: Any, detail: str) -> None:
        self._add(path, f"Invalid value: {quote(value)}", detail)

    def unsupported(self, path: str, value: Any, known: Collection[str]) -> None:
        names = ", ".join(quote(name) for name in known)
        self._add(path, f"Unsupported value: {quote(value)}", f"supported values: {names}")

    def duplicate(self, path: str, value: Any) -> None:
        self._add(path, f"Duplicate value: {quote(value)}")

    def not_found(self, path: str, value: Any) -> None:
        self._add(path, f"Not found: {quote(value)}")

    def forbidden(self, path: str, detail: str) -> None:
        self._add(path, "Forbidden", detail)

    def too_many(self, path: str, count: int, most: int) -> None:
        self._add(path, f"Too many: {count}", f"must have at most {most} items")

    def check(self, path: str, value: str, rule: Callable[[str], str | None]) -> None:
        """Apply a rule of `syntax` to a value."""
        detail = rule(value)
        if detail is not None:
            self.invalid(path, value, detail)

    def need(self, path: str, value: str | None, rule: Callable[[str], str | None]) -> None:
        """Apply a rule to a value that is required."""
        if value:
            self.check(path, value, rule)
        else:
            self.required(path)

    def one_of(self, path: str, value: str | None, known: Collection[str]) -> None:
        """Check an enumeration; None passes, because defaulting fills it."""
        if value is not None and value not in known:
            self.unsupported(path, value, known)

    def at_least(self, path: str, value: int | None, least: int) -> None:
        if value is not None and value < least:
            self.invalid(path, value, f"must be greater than or equal to {least}")

    def within(self, path: str, value: int, least: int, most: int) -> None:
        if not least <= value <= most:
            self.invalid(path, value, f"must be between {least} and {most}, inclusive")

    def quantity(self, path: str, text: str) -> int | None:
        """Return a quantity of 0 or more in nano-units; None if it is not valid."""
        try:
            amount = parse_quantity(text)
        except ValueError:
            self.invalid(path, text, "must be a quantity such as 500m, 1.5 or 64Mi")
            return None
        if amount < 0:
            self.invalid(path, text, "must be greater than or equal to 0")
            return None
        if amount >= _TOO_LARGE:
            self.invalid(path, text, "is larger than any machine")
            return None
        return amount

    def _add(self, path: str, kind: str, detail: str = "") -> None:
        self.found.append(FieldError(path, f"{kind}: {detail}" if detail else kind))
