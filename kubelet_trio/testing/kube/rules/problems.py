"""Collect validation errors of an object, in the words of an API server."""

from __future__ import annotations

import json
from typing import Any

from kubelet_trio.kube import KubeError, Resource

IMMUTABLE = "field is immutable"
NOT_NEGATIVE = "must be greater than or equal to 0"


class Problems:
    """The validation errors of one object, each with the path of its field."""

    def __init__(self) -> None:
        self._found: list[str] = []

    @property
    def found(self) -> bool:
        """Whether there is an error so far."""
        return bool(self._found)

    def invalid(self, path: str, value: Any, text: str) -> None:
        self._add(path, f"Invalid value: {shown(value)}: {text}")

    def required(self, path: str, text: str = "") -> None:
        self._add(path, "Required value" + (f": {text}" if text else ""))

    def unsupported(self, path: str, value: str, known: tuple[str, ...]) -> None:
        names = ", ".join(f'"{name}"' for name in known)
        self._add(path, f"Unsupported value: {shown(value)}: supported values: {names}")

    def duplicate(self, path: str, value: Any, text: str = "") -> None:
        self._add(path, f"Duplicate value: {shown(value)}" + (f": {text}" if text else ""))

    def not_found(self, path: str, value: str, text: str) -> None:
        self._add(path, f"Not found: {shown(value)}: {text}")

    def forbidden(self, path: str, text: str) -> None:
        self._add(path, f"Forbidden: {text}")

    def too_long(self, path: str, limit: int) -> None:
        self._add(path, f"Too long: may not be more than {limit} bytes")

    def too_many(self, path: str, count: int, limit: int) -> None:
        self._add(path, f"Too many: {count}: must have at most {limit} items")

    def internal(self, path: str, text: str) -> None:
        self._add(path, f"Internal error: {text}")

    def raise_for(self, route: Resource, name: str) -> None:
        """Raise `KubeError` if there are errors."""
        if self._found:
            # As Go's Aggregate: each text once, and brackets only around several.
            texts = list(dict.fromkeys(self._found))
            raise invalid(route, name, texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]")

    def _add(self, path: str, text: str) -> None:
        self._found.append(f"{path}: {text}")


def shown(value: Any) -> str:
    """Return a value as the server's messages show it."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def invalid(route: Resource, name: str, problem: str) -> KubeError:
    """Return the error for an invalid object."""
    kind = f"{route.kind}.{route.group}" if route.group else route.kind
    return KubeError(422, "Invalid", f'{kind} "{name}" is invalid: {problem}')
