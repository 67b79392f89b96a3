"""Checks protobuf messages of a peer before they are decoded, and shows those with secrets.

betterproto2 trusts the wire type of a field: a number in place of a string becomes a field with a
number, or a KeyError in its decoder. It also keeps unknown fields, and copies all of them for each
further one (quadratic work). One pass over the bytes refuses both first.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, TypeVar

MessageT = TypeVar("MessageT")

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
# By betterproto2's type names; all other types are varints.
_WIRE_TYPES = {
    "double": _FIXED64,
    "fixed64": _FIXED64,
    "sfixed64": _FIXED64,
    "float": _FIXED32,
    "fixed32": _FIXED32,
    "sfixed32": _FIXED32,
    "string": _BYTES,
    "bytes": _BYTES,
    "message": _BYTES,
    "map": _BYTES,
}
_REDACTED = "***stripped***"  # as csi-lib-utils writes it (protosanitizer)
_MOST_UNKNOWN = 256  # fields per message; a newer peer has a few

_Known = tuple[int, bool, Any]  # wire type, whether it may be packed, class of what is inside


def parse_message(message_type: type[MessageT], data: bytes) -> MessageT:
    """Decode a message. Raises ValueError or EOFError if it is not of that type."""
    if hasattr(message_type, "_betterproto"):
        _check(message_type, data, 0, len(data))
    parsed: MessageT = message_type.parse(data)  # type: ignore[attr-defined]
    return parsed


def redacted(message: Any, *names: str) -> str:
    """Return the repr of a message whose fields of these names hold secrets: without their values.

    The keys of a map are shown.
    """
    parts = []
    for name in (field.name for field in dataclasses.fields(message)):
        value = getattr(message, name)
        if name in names and isinstance(value, dict):
            value = dict.fromkeys(value, _REDACTED)
        elif name in names and value:
            value = _REDACTED
        if value:
            parts.append(f"{name}={value!r}")
    return f"{type(message).__name__}({', '.join(parts)})"


def encode_varint(value: int) -> bytes:
    """Encode a number of up to 64 bits; a negative one as its two's complement."""
    value &= (1 << 64) - 1
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def encode_number(field: int, value: int) -> bytes:
    """Encode a field whose type is a varint: a number, bool or enum."""
    return encode_varint(field << 3 | _VARINT) + encode_varint(value)


def encode_bytes(field: int, content: bytes) -> bytes:
    """Encode a field of bytes, of UTF-8 text, or of an encoded message."""
    return encode_varint(field << 3 | _BYTES) + encode_varint(len(content)) + content


@functools.cache
def _known_fields(message_type: Any) -> dict[int, _Known]:
    described, found = message_type._betterproto, {}
    for name, meta in described.meta_by_field_name.items():
        wire_type = _WIRE_TYPES.get(meta.proto_type, _VARINT)
        inside = None
        if meta.proto_type in ("message", "map"):
            inside = meta.unwrap() if meta.unwrap else described.cls_by_field[name]
        # A parser must accept both forms of a repeated number, packed and not (protobuf.dev,
        # Encoding).
        is_packed = meta.repeated and wire_type != _BYTES
        found[meta.number] = wire_type, is_packed, inside
    return found


def _check(message_type: Any, data: bytes, at: int, end: int) -> None:
    """Raise ValueError if a field has the wrong wire type, or the message is truncated."""
    known, unknown = _known_fields(message_type), 0
    while at < end:
        tag, at = _varint(data, at, end)
        wire_type = tag & 7
        # Groups (wire types 3 and 4) do not exist in proto3: they are refused below.
        if wire_type == _BYTES:
            size, at = _varint(data, at, end)
            start, at = at, at + size
        elif wire_type == _VARINT:
            _, at = _varint(data, at, end)
        elif wire_type in (_FIXED64, _FIXED32):
            at += 8 if wire_type == _FIXED64 else 4
        else:
            raise ValueError(f"{message_type.__name__}: unknown wire type {wire_type}")
        if at > end:
            raise ValueError(f"{message_type.__name__}: the message is cut short")
        field = known.get(tag >> 3)
        if field is None:
            unknown += 1
            if unknown > _MOST_UNKNOWN:
                raise ValueError(f"more than {_MOST_UNKNOWN} unknown fields")
            continue
        expected, is_packed, inside = field
        if wire_type != expected and not (is_packed and wire_type == _BYTES):
            raise ValueError(
                f"{message_type.__name__}: field {tag >> 3} has wire type {wire_type}, "
                f"not {expected}"
            )
        if inside is not None:
            _check(inside, data, start, at)


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
        # 64 bits at most; without a limit a long varint takes quadratic time.
        if shift > 63:
            raise ValueError("a varint is too long")
    raise ValueError("a varint is cut short")
