"""Checksums and JSON of the Go kubelet's checkpoints, so that either agent reads the other's files.

The Go kubelet hashes, with 32-bit FNV-1a, what Go's deep printer makes of the value in memory: the
names of its types and fields count as well. So a checkpoint here describes its value with them.
Source: pkg/kubelet/checkpointmanager/checksum and k8s.io/utils/dump (spew with `%#v`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from kubelet_trio.model import fnv1a_32

_NIL = "<nil>"
# What Go's JSON encoder escapes and others do not; none of them is part of JSON itself.
_ESCAPES = {c: f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


class GoValue(NamedTuple):
    """A Go value as the deep printer writes it.

    Attributes:
        type: the type's name, such as `map[string]string` or `state.Block`.
        text: the value where its type is written before it.
        bare: the value inside a map or a slice, which write no types of their elements.
    """

    type: str
    text: str
    bare: str


def go_value(go_type: str, value: str | int) -> GoValue:
    """Return a string or an integer."""
    return GoValue(go_type, str(value), str(value))


def go_map(go_type: str, entries: Mapping[str, GoValue] | Mapping[int, GoValue] | None) -> GoValue:
    """Return a map, which is printed in the order of its keys; None: a nil map."""
    if entries is None:
        return GoValue(go_type, _NIL, _NIL)
    pairs: list[tuple[str | int, GoValue]] = sorted(entries.items())
    text = f"map[{' '.join(f'{key}:{value.bare}' for key, value in pairs)}]"
    return GoValue(go_type, text, text)


def go_slice(go_type: str, items: Iterable[GoValue] | None) -> GoValue:
    """Return a slice; None: a nil slice."""
    text = _NIL if items is None else f"[{' '.join(item.bare for item in items)}]"
    return GoValue(go_type, text, text)


def go_struct(go_type: str, fields: Mapping[str, GoValue]) -> GoValue:
    """Return a struct, whose fields are in the order of its declaration."""
    parts = (f"{name}:({value.type}){value.text}" for name, value in fields.items())
    text = f"{{{' '.join(parts)}}}"
    return GoValue(go_type, text, text)


def go_pointer(value: GoValue) -> GoValue:
    """Return a pointer to a value."""
    return GoValue(f"*{value.type}", value.text, f"<*>{value.text}")


def checksum(value: GoValue) -> int:
    """Return the number that a checkpoint carries for its value with the checksum set to 0."""
    return fnv1a_32(f"({value.type}){value.text}".encode())


def go_json(value: object) -> bytes:
    """Return the JSON of a value as Go's encoder writes it; maps have to be in its order."""
    text = msgspec.json.encode(value).decode()
    for plain, escaped in _ESCAPES.items():
        text = text.replace(plain, escaped)
    return text.encode()
