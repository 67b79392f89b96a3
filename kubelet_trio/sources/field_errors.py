"""The API server's field errors, collected along a walk."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from kubelet_trio.sources._errors import FieldError
from kubelet_trio.sources.decode import quote


class Errors:
    """Every error found so far, in the order found. Paths are written out by the caller."""

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
        """Apply a rule to a value that must be there."""
        if value:
            self.check(path, value, rule)
        else:
            self.required(path)

    def one_of(self, path: str, value: str | None, known: Collection[str]) -> None:
        """Check an enumeration; None is for defaults to fill, and passes."""
        if value is not None and value not in known:
            self.unsupported(path, value, known)

    def at_least(self, path: str, value: int | None, least: int) -> None:
        if value is not None and value < least:
            self.invalid(path, value, f"must be greater than or equal to {least}")

    def within(self, path: str, value: int, least: int, most: int) -> None:
        if not least <= value <= most:
            self.invalid(path, value, f"must be between {least} and {most}, inclusive")

    def _add(self, path: str, kind: str, detail: str = "") -> None:
        self.found.append(FieldError(path, f"{kind}: {detail}" if detail else kind))
