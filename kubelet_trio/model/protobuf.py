"""Encodes and decodes the protobuf messages of peers, and shows those with secrets.

The messages are betterproto2's. Its decoder is not used: it trusts the wire type of a field, so
that a number in place of a string becomes a field with a number, or a KeyError. It copies all
unknown fields for each further one, which is quadratic work. And it takes five times as long: to
decode the statistics of 200 containers took more than to measure them. The encoder writes the same
bytes as betterproto2's, by a table for each class, in a tenth of its time.
"""

from __future__ import annotations

import dataclasses
import functools
import struct
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

MessageT = TypeVar("MessageT")

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_WITH_NUMBER = frozenset((_VARINT, _BYTES))  # after the tag
_SIZES = {_FIXED64: 8, _FIXED32: 4}
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
_ONE_BYTE = 0x7F  # the largest number that takes one
_KEY_TAG, _VALUE_TAG = 1 << 3 | _BYTES, 2 << 3 | _BYTES  # of an entry of a map
_MOST_UNKNOWN = 256  # fields per message; a newer peer has a few


@dataclasses.dataclass(slots=True)
class _Encoder:
    """How one field is encoded."""

    name: str
    key: bytes  # field number and wire type
    default: Any  # not encoded
    encode: Callable[[Any], bytes]  # a value, or each of a list or map
    is_repeated: bool
    is_packed: bool
    is_map: bool


def parse_message(message_type: type[MessageT], data: bytes) -> MessageT:
    """Decode a message. Raises ValueError or EOFError if it is not of that type."""
    decoded: MessageT
    if _is_betterproto(cast("Any", message_type)):
        decoded = _decode(message_type, data, 0, len(data))
    else:
        decoded = message_type.parse(data)  # type: ignore[attr-defined]
    return decoded


def encode_message(message: Any) -> bytes:
    """Encode a message, as `bytes(message)` does, in a fraction of its time."""
    message_type: Any = type(message)
    if not _is_betterproto(message_type):
        return bytes(message)
    parts: list[bytes] = []
    values = message.__dict__
    for field in _encoders(message_type):
        value = values[field.name]
        if value is None or value == field.default:
            continue
        if field.is_map:
            for entry in value.items():
                parts += (field.key, field.encode(entry))
        elif field.is_packed:
            parts += (field.key, _sized(b"".join(map(field.encode, value))))
        elif field.is_repeated:
            for each in value:
                parts += (field.key, field.encode(each))
        else:
            parts += (field.key, field.encode(value))
    parts.append(values["_unknown_fields"])
    return b"".join(parts)


@functools.cache
def _is_betterproto(message_type: Any) -> bool:
    return hasattr(message_type, "_betterproto")  # which is made anew each time


@functools.cache
def _encoders(message_type: Any) -> tuple[_Encoder, ...]:
    found, described = [], message_type._betterproto
    for name, meta in described.meta_by_field_name.items():
        wire_type = _WIRE_TYPES.get(meta.proto_type, _VARINT)
        is_packed = bool(meta.repeated) and wire_type != _BYTES
        key = encode_varint(meta.number << 3 | (_BYTES if is_packed else wire_type))
        encode = _entry_encoder(meta) if meta.map_meta else _encoder(meta)
        default = described.default_gen[name]()
        is_map = bool(meta.map_meta)
        found.append(_Encoder(name, key, default, encode, bool(meta.repeated), is_packed, is_map))
    return tuple(found)


def _encoder(meta: Any) -> Callable[[Any], bytes]:
    kind = meta.proto_type
    if kind == "message":
        if meta.unwrap:
            wrapped = meta.unwrap()
            return lambda value: _sized(encode_message(wrapped.from_wrapped(value)))
        return lambda value: _sized(encode_message(value))
    if kind == "string":
        return _encode_text
    if kind == "bytes":
        return _sized
    if kind in ("sint32", "sint64"):
        return lambda value: encode_varint(value << 1 if value >= 0 else ~(value << 1))
    if kind in _FORMATS:
        return struct.Struct(_FORMATS[kind]).pack
    return encode_varint


def _entry_encoder(meta: Any) -> Callable[[Any], bytes]:
    """Return what encodes a key and its value, as a map holds them."""
    kinds = meta.map_meta
    if all(each.proto_type == "string" for each in kinds):
        return _encode_text_entry
    encode_key, encode_value = (_encoder(each) for each in kinds)
    keys = [
        encode_varint(number << 3 | _WIRE_TYPES.get(each.proto_type, _VARINT))
        for number, each in enumerate(kinds, start=1)
    ]

    def encode(entry: tuple[Any, Any]) -> bytes:
        key, value = entry
        return _sized(keys[0] + encode_key(key) + keys[1] + encode_value(value))

    return encode


def _encode_text_entry(entry: tuple[str, str]) -> bytes:
    """Encode an entry of labels, annotations and the like: nearly all maps are of texts."""
    key, value = entry
    return _sized(b"\x0a" + _encode_text(key) + b"\x12" + _encode_text(value))


def _encode_text(value: str) -> bytes:
    data = value.encode()
    return (_SHORT[size] if (size := len(data)) < 0x80 else encode_varint(size)) + data


def _sized(data: bytes) -> bytes:
    return (_SHORT[size] if (size := len(data)) < 0x80 else encode_varint(size)) + data


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


_SHORT = tuple(bytes((value,)) for value in range(0x80))


def encode_varint(value: int) -> bytes:
    """Encode a number of up to 64 bits; a negative one as its two's complement."""
    value &= (1 << 64) - 1
    if value < 0x80:  # the common case
        return _SHORT[value]
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


# What a message has of a field: one value, a list, a list whose values may come packed, a map, or a
# map of texts to texts.
_SINGLE, _LIST, _NUMBERS, _MAP, _TEXTS = range(5)
# Of a number, or of bytes, to the value.
_Convert = Callable[[Any], Any]
# Name, wire type, kind, and the class of the message inside, or of a map's entries.
_Field = tuple[str, int, int, Any, _Convert | None]


@dataclasses.dataclass(frozen=True, slots=True)
class _Plan:
    """How a type of messages is decoded."""

    fields: dict[int, _Field]  # by number
    constants: dict[str, Any]  # default values that all messages share
    fresh: tuple[tuple[str, Callable[[], Any]], ...]  # those of which each message has its own


@functools.cache
def _plan_of(message_type: Any) -> _Plan:
    described = message_type._betterproto
    fields, constants, fresh = {}, {"_unknown_fields": b""}, []
    for name, meta in described.meta_by_field_name.items():
        wire_type = _WIRE_TYPES.get(meta.proto_type, _VARINT)
        inside, kind = None, _SINGLE
        convert = _converter(meta.proto_type, described.cls_by_field.get(name))
        if meta.proto_type in ("message", "map"):
            inside = meta.unwrap() if meta.unwrap else described.cls_by_field[name]
            convert = inside.to_wrapped if meta.unwrap else None
        if meta.proto_type == "map":
            is_texts = all(each.proto_type == "string" for each in meta.map_meta)
            kind = _TEXTS if is_texts else _MAP
        elif meta.repeated:
            # A parser must accept both forms of a repeated number, packed and not (protobuf.dev,
            # Encoding).
            kind = _LIST if wire_type == _BYTES else _NUMBERS
        fields[meta.number] = name, wire_type, kind, inside, convert
        default = described.default_gen[name]
        if isinstance(value := default(), (list, dict)):
            fresh.append((name, default))
        else:
            constants[name] = value
    return _Plan(fields, constants, tuple(fresh))


def _converter(proto_type: str, of_enum: Any) -> _Convert | None:
    if proto_type in _FORMATS:
        unpack = struct.Struct(_FORMATS[proto_type]).unpack
        return lambda content: unpack(content)[0]
    if proto_type == "enum":
        return lambda number: of_enum(_signed(number, 64))
    return _CONVERTERS.get(proto_type)


def _signed(number: int, bits: int) -> int:
    sign = 1 << (bits - 1)
    return ((number & ((1 << bits) - 1)) ^ sign) - sign


def _zigzag(number: int) -> int:
    return (number >> 1) ^ -(number & 1)


_FORMATS = {
    "double": "<d",
    "float": "<f",
    "fixed32": "<I",
    "fixed64": "<Q",
    "sfixed32": "<i",
    "sfixed64": "<q",
}
_CONVERTERS: dict[str, _Convert] = {
    "string": bytes.decode,
    "bool": lambda number: number > 0,
    "int32": lambda number: _signed(number, 32),
    "int64": lambda number: _signed(number, 64),
    "uint32": lambda number: number & 0xFFFFFFFF,
    "uint64": lambda number: number & 0xFFFFFFFFFFFFFFFF,
    "sint32": lambda number: _zigzag(number & 0xFFFFFFFF),
    "sint64": lambda number: _zigzag(number & 0xFFFFFFFFFFFFFFFF),
}


_keys: dict[str, str] = {}  # of maps, which messages share
_MOST_KEYS, _LONGEST_KEY = 500, 320  # a prefix of 253 and a name of 63 characters
_set = object.__setattr__  # past betterproto2's own, for a time that shows


def _new(message_type: Any) -> tuple[Any, dict[int, _Field]]:
    """Return an empty message, and the fields of its type, by number."""
    plan = _plan_of(message_type)
    message = message_type.__new__(message_type)
    # One by one: so the message shares its keys with others of its class.
    for name, value in plan.constants.items():
        _set(message, name, value)
    for name, make in plan.fresh:
        _set(message, name, make())
    return message, plan.fields


def _shared(key: str) -> str:
    """Return the key of a map, and let later messages have the same object."""
    if len(_keys) < _MOST_KEYS and len(key) <= _LONGEST_KEY:
        _keys[key] = key
    return key


def _known_key(key: Any) -> Any:
    return _keys.get(key) or _shared(key) if type(key) is str else key


def _keep_unknown(unknown: list[bytes], field: bytes) -> None:
    unknown.append(field)
    if len(unknown) > _MOST_UNKNOWN:
        raise ValueError(f"more than {_MOST_UNKNOWN} unknown fields")


def _wrong_type(message_type: Any, tag: int, expected: int) -> ValueError:
    what = f"field {tag >> 3} has wire type {tag & 7}, not {expected}"
    return ValueError(f"{message_type.__name__}: {what}")


def _decode(message_type: Any, data: bytes, at: int, end: int) -> Any:
    """Return the message in a part of `data`. Raises ValueError, for proto2's groups too."""
    message, known, unknown = *_new(message_type), list[bytes]()
    values = message.__dict__
    while at < end:
        began = at
        # This is where the time goes: numbers of one byte, which most are, need no call.
        tag, at = data[at], at + 1
        if tag > _ONE_BYTE:
            tag, at = _varint(data, began, end)
        wire_type = tag & 7
        if wire_type in _WITH_NUMBER:
            if at < end and (number := data[at]) <= _ONE_BYTE:
                at += 1
            else:
                number, at = _varint(data, at, end)
            start = at
            if wire_type == _BYTES:
                at += number
        elif wire_type in _SIZES:
            start, at = at, at + _SIZES[wire_type]
        else:
            raise ValueError(f"{message_type.__name__}: unknown wire type {wire_type}")
        if at > end:
            raise ValueError(f"{message_type.__name__}: the message is cut short")
        field = known.get(tag >> 3)
        if field is None:
            _keep_unknown(unknown, data[began:at])
            continue
        name, expected, kind, inside, convert = field
        if wire_type != expected:
            if kind != _NUMBERS or wire_type != _BYTES:
                raise _wrong_type(message_type, tag, expected)
            values[name].extend(_packed(expected, convert, data, start, at))
            continue
        if kind == _TEXTS:
            if (entry := _text_entry(data, start, at)) is not None:
                values[name][entry[0]] = entry[1]
                continue
            kind = _MAP  # an entry of another form, which is valid as well
        if inside is not None:
            value = _decode(inside, data, start, at)
        elif wire_type == _VARINT:
            value = number
        else:
            value = data[start:at]
        if convert is not None:
            value = convert(value)
        if kind == _SINGLE:
            values[name] = value
        elif kind == _MAP:
            # Labels and annotations: the same few keys in thousands of messages.
            values[name][_known_key(value.key)] = value.value
        else:
            values[name].append(value)
    if unknown:
        values["_unknown_fields"] = b"".join(unknown)
    return message


def _text_entry(data: bytes, at: int, end: int) -> tuple[str, str] | None:
    """Return an entry of a map of texts as all encoders write it: key, then value, both short.

    None for any other form. Raises ValueError if it is not UTF-8.
    """
    middle = at + 2
    if middle > end or data[at] != _KEY_TAG or (size := data[at + 1]) > _ONE_BYTE:
        return None
    middle += size
    start = middle + 2
    if start > end or data[middle] != _VALUE_TAG or (size := data[middle + 1]) > _ONE_BYTE:
        return None
    if start + size != end:
        return None
    return data[at + 2 : middle].decode(), data[start:end].decode()


def _packed(
    wire_type: int, convert: _Convert | None, data: bytes, at: int, end: int
) -> Iterator[Any]:
    """Yield the values of a packed field. Raises ValueError."""
    size = _SIZES.get(wire_type, 0)
    if size and (end - at) % size:
        raise ValueError("a packed field is cut short")
    while at < end:
        value: Any
        if size:
            value, at = data[at : at + size], at + size
        else:
            value, at = _varint(data, at, end)
        yield value if convert is None else convert(value)


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
