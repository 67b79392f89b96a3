"""Access to settings by their dotted path, as messages and flags name them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from kubelet_trio.config.types import Block


@dataclass(frozen=True, slots=True)
class Leaf:
    """One setting: its type and the path of attributes to it."""

    type: Any
    attributes: tuple[str, ...]

    def get(self, block: Block) -> Any:
        value: Any = block
        for name in self.attributes:
            value = getattr(value, name)
        return value


def leaves(
    kind: type[Block], path: str = "", attributes: tuple[str, ...] = ()
) -> Iterator[tuple[str, Leaf]]:
    """Yield (dotted JSON path, leaf) for every setting, also inside blocks."""
    for field in msgspec.structs.fields(kind):
        here = (*attributes, field.name)
        if isinstance(field.type, type) and issubclass(field.type, Block):
            yield from leaves(field.type, f"{path}{field.encode_name}.", here)
        # The two describe the file, they are no settings.
        elif field.encode_name not in ("apiVersion", "kind"):
            yield path + field.encode_name, Leaf(field.type, here)


def put(raw: dict[str, Any], path: str, value: Any) -> None:
    """Set a dotted path in decoded JSON; create missing blocks on the way."""
    *blocks, last = path.split(".")
    for name in blocks:
        # Null or a value of the wrong type is replaced: a flag wins over the file.
        inner = raw.get(name)
        if not isinstance(inner, dict):
            inner = raw[name] = {}
        raw = inner
    raw[last] = value


def pick(raw: Mapping[str, Any], path: str) -> Any:
    """Return the value at a dotted path; None if it is unset or null."""
    value: Any = raw
    for name in path.split("."):
        if not isinstance(value, dict):
            return None
        value = value.get(name)
    return value


def drop(raw: dict[str, Any], path: str) -> None:
    """Unset a dotted path."""
    *blocks, last = path.split(".")
    inner = pick(raw, ".".join(blocks)) if blocks else raw
    if isinstance(inner, dict):
        inner.pop(last, None)
