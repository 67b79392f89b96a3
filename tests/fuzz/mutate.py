"""Strategies that make a hostile text of a good one: bytes, JSON trees, protobuf, frames.

Random bytes alone are refused at the first byte. What finds bugs is nearly right: a known field
with another type, a number that is too large, a length that lies, a piece that comes twice.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st

Bytes = st.SearchStrategy[bytes]

DEEP = 1500  # more levels than Python may recurse
_DIGITS = "9" * 5000  # more than int() takes of a text
_TOKENS = (
    b"\0",
    b"\n",
    b"\r\n",
    b"\r",
    b" ",
    b"\t",
    b"\x1b[2J",
    b"\xff",
    b"\xed\xa0\x80",  # a surrogate in UTF-8
    b"\xe2\x80\xa8",  # a line's end to splitlines() alone
    b"\xc2\x85",
    b"\xd9\xa3",  # a digit that is no ASCII
    b"\xc2\xb2",  # isdigit() but not isdecimal()
    b"-1",
    b"1e999",
    b"nan",
    b"18446744073709551616",
    _DIGITS.encode(),
    b"'",
    b'"',
    b"\\",
    b"=",
    b":",
    b"/",
    b"../",
    b"$(",
    b"%",
    b"[" * DEEP,
    b"x" * 300,
)
# Stand in a tree for what json.dumps cannot write.
_DEEP_LIST, _DEEP_OBJECT, _LONG_NUMBER = "@deep list@", "@deep object@", "@long number@"
_RAW = {
    f'"{_DEEP_LIST}"': "[" * DEEP + "]" * DEEP,
    f'"{_DEEP_OBJECT}"': '{"a":' * DEEP + "1" + "}" * DEEP,
    f'"{_LONG_NUMBER}"': _DIGITS,
}
_ODD: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    2**31,
    2**63,
    2**64,
    -(2**63) - 1,
    0.5,
    1e308,
    float("nan"),
    float("inf"),
    "",
    " ",
    "a",
    "\0",
    "\ud800",
    "\u2028",
    "\x1b[2J",
    "-1",
    "1Gi",
    "9" * 400,
    "../..",
    "/",
    "x" * 1000,
    "2024-99-99T00:00:00Z",
    "0001-01-01T00:00:00+23:59",
    "9999-12-31T23:59:59-23:59",
    [],
    {},
    [None],
    [[]],
    [{}],
    {"": None},
    {"a": {"a": []}},
    _DEEP_LIST,
    _DEEP_OBJECT,
    _LONG_NUMBER,
)


@st.composite
def edited(draw: st.DrawFn, source: Bytes, tokens: Sequence[bytes] = ()) -> bytes:
    """Change bytes of `source` here and there; `tokens` are what its format is made of."""
    data = bytearray(draw(source))
    token = st.one_of(st.sampled_from((*tokens, *_TOKENS)), st.binary(max_size=8))
    for _ in range(draw(st.integers(0, 4))):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.integers(0, 40)))
        kind = draw(st.sampled_from(("insert", "replace", "cut", "again", "end", "bit")))
        if kind == "insert":
            data[start:start] = draw(token)
        elif kind == "replace":
            data[start:end] = draw(token)
        elif kind == "cut":
            del data[start:end]
        elif kind == "again":
            data[start:start] = data[start:end] * draw(st.integers(1, 20))
        elif kind == "end":
            del data[start:]
        elif start < len(data):
            data[start] ^= 1 << draw(st.integers(0, 7))
    return bytes(data)


def texts(examples: Sequence[bytes], *tokens: bytes) -> Bytes:
    """Texts of lines or words, and noise."""
    return st.one_of(edited(st.sampled_from(examples), tokens), st.binary(max_size=80))


def documents(examples: Sequence[bytes], load: Callable[[bytes], Any] = json.loads) -> Bytes:
    """JSON documents: trees with a few values replaced, and sometimes bytes of them edited."""
    trees = st.sampled_from([load(example) for example in examples])
    whole = _trees(trees).map(encode_tree)
    return st.one_of(whole, whole, edited(whole), edited(st.sampled_from(examples)))


def encode_tree(tree: Any) -> bytes:
    """Write a tree, the deep and long values that stand for others included."""
    text = json.dumps(tree)
    for name, raw in _RAW.items():
        text = text.replace(name, raw)
    return text.encode()


@st.composite
def _trees(draw: st.DrawFn, source: st.SearchStrategy[Any]) -> Any:
    tree = json.loads(json.dumps(draw(source)))
    for _ in range(draw(st.integers(1, 4))):
        tree = _changed(draw, tree)
    return tree


def _changed(draw: st.DrawFn, tree: Any) -> Any:
    """Change one place of a tree, found by walking down from its root."""
    inside = isinstance(tree, dict | list) and tree
    if not inside or draw(st.integers(0, 7)) == 0:
        return _odd(draw)
    keys = list(tree) if isinstance(tree, dict) else list(range(len(tree)))
    key: Any = draw(st.sampled_from(keys))
    kind = draw(st.sampled_from(("down", "down", "down", "drop", "odd", "wrap", "twice", "name")))
    if kind == "down":
        tree[key] = _changed(draw, tree[key])
    elif kind == "drop":
        del tree[key]
    elif kind == "odd":
        tree[key] = _odd(draw)
    elif kind == "wrap":
        inner = tree[key]
        ways = [inner], {"a": inner}, [inner, copy.deepcopy(inner)]
        tree[key] = ways[draw(st.integers(0, 2))]
    elif isinstance(tree, list):
        tree.append(copy.deepcopy(tree[key]))
    elif kind == "twice":
        tree[draw(st.sampled_from(keys))] = copy.deepcopy(tree[key])
    else:
        tree[draw(st.sampled_from(("", "x", "\x1b", "\ud800", key.upper(), "name")))] = (
            copy.deepcopy(tree[key])
        )
    return tree


def _odd(draw: st.DrawFn) -> Any:
    return copy.deepcopy(draw(st.sampled_from(_ODD)))  # later changes are made in place


# Protobuf, by the wire alone

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
Field = tuple[int, int, Any]  # number, wire type, and a number, bytes, or the fields of a message


def varint(value: int) -> bytes:
    """Return a number as protobuf has it."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


def _take_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 0x80:
            return value, at


def fields_of(data: bytes) -> list[Field]:
    """Take a message apart. What could be a message of its own counts as one."""
    found: list[Field] = []
    at = 0
    while at < len(data):
        tag, at = _take_varint(data, at)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            value, at = _take_varint(data, at)
            found.append((number, kind, value))
            continue
        size = {_FIXED64: 8, _FIXED32: 4}.get(kind, 0)
        if kind == _BYTES:
            size, at = _take_varint(data, at)
        elif not size or not number:
            raise ValueError("no message")
        content = data[at : at + size]
        if len(content) != size:
            raise ValueError("no message")
        at += size
        found.append((number, kind, _inner(content) if kind == _BYTES else content))
    return found


def _inner(content: bytes) -> Any:
    try:
        return fields_of(content) if content and content[0] < 0x80 else content
    except (ValueError, IndexError):
        return content


def join_fields(fields: Sequence[Field]) -> bytes:
    """Put a message together."""
    out = bytearray()
    for number, kind, value in fields:
        out += varint(number << 3 | kind)
        if kind == _VARINT:
            out += varint(value)
            continue
        content = join_fields(value) if isinstance(value, list) else bytes(value)
        out += (varint(len(content)) if kind == _BYTES else b"") + content
    return bytes(out)


_ODD_FIELDS: tuple[tuple[int, Any], ...] = (
    (_VARINT, 0),
    (_VARINT, 1),
    (_VARINT, 99),
    (_VARINT, 2**31),
    (_VARINT, 2**63),
    (_VARINT, 2**64 - 1),
    (_VARINT, 2**70),
    (_FIXED64, b"\xff" * 8),
    (_FIXED32, b"\xff" * 4),
    (_BYTES, b""),
    (_BYTES, b"\xff\xfe"),
    (_BYTES, b"\xed\xa0\x80"),
    (_BYTES, b"\0"),
    (_BYTES, b"\x08\x80"),
    (_BYTES, b"\x1b[2J"),
    (_BYTES, b"[" * DEEP),
    (_BYTES, b"x" * 2000),
)


@st.composite
def messages(draw: st.DrawFn, source: Sequence[bytes]) -> bytes:
    """Protobuf messages with odd, missing, repeated and huge fields."""
    tree = fields_of(draw(st.sampled_from(source)))
    for _ in range(draw(st.integers(1, 4))):
        _change_field(draw, tree)
    data = join_fields(tree)
    return draw(edited(st.just(data))) if draw(st.integers(0, 3)) == 0 else data


def _change_field(draw: st.DrawFn, fields: list[Field]) -> None:
    if not fields:
        kind, value = draw(st.sampled_from(_ODD_FIELDS))
        fields.append((draw(st.integers(1, 20)), kind, value))
        return
    at = draw(st.integers(0, len(fields) - 1))
    number, kind, value = fields[at]
    what = draw(st.sampled_from(("down", "down", "down", "drop", "odd", "again", "number")))
    if what == "down" and isinstance(value, list):
        inner = list(value)
        _change_field(draw, inner)
        fields[at] = number, kind, inner
    elif what == "drop":
        del fields[at]
    elif what == "again":
        fields.insert(draw(st.integers(0, len(fields))), fields[at])
    elif what == "number":
        fields[at] = draw(st.integers(1, 20)), kind, value
    else:
        kind, value = draw(st.sampled_from(_ODD_FIELDS))
        fields[at] = number, kind, value


def frames(pieces: Sequence[bytes], start: bytes = b"", *, most: int = 10) -> Bytes:
    """What comes on a connection: whole frames in any order, some of them damaged."""
    piece = st.sampled_from(pieces)
    one = st.one_of(piece, piece, piece, edited(piece), st.binary(max_size=40))
    joined = st.lists(one, max_size=most).map(b"".join)
    return st.one_of(joined.map(start.__add__), joined.map(start.__add__), joined)
