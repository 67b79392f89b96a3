"""Encodes and decodes header values: metadata, `grpc-timeout`, `grpc-message`."""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from urllib.parse import quote, unquote_to_bytes

Value = str | bytes
MetadataLike = Mapping[str, Value] | Collection[tuple[str, Value]]
Metadata = tuple[tuple[str, Value], ...]
Headers = list[tuple[bytes, bytes]]

_KEY = re.compile(r"[0-9a-z_.\-]+")
_VALUE = re.compile(r"[ !-~]*")
_RESERVED = frozenset({"te", "content-type", "user-agent"})
_TIMEOUT = re.compile(rb"(\d{1,8})([HMSmun])")
_UNITS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_LARGEST = 10**8 - 1  # the protocol allows eight digits
_PLAIN = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")


def encode_metadata(metadata: MetadataLike) -> Headers:
    """Return metadata as headers. Raises ValueError for a key or value gRPC does not allow."""
    pairs: Iterable[tuple[str, Value]]
    pairs = metadata.items() if isinstance(metadata, Mapping) else metadata
    return [(key.encode(), _encode_value(key, value)) for key, value in pairs]


def _encode_value(key: str, value: Value) -> bytes:
    if key in _RESERVED or key.startswith("grpc-") or not _KEY.fullmatch(key):
        raise ValueError(f"invalid metadata key {key!r}")
    if key.endswith("-bin"):
        if not isinstance(value, bytes):
            raise ValueError(f"metadata {key!r} needs bytes")
        return base64.b64encode(value).rstrip(b"=")  # gRPC sends base64 without padding
    if not isinstance(value, str) or not _VALUE.fullmatch(value):
        raise ValueError(f"invalid value for metadata {key!r}")
    return value.encode()


def decode_metadata(headers: Iterable[tuple[bytes, bytes]]) -> Metadata:
    """Return the metadata in a header block, without binary values that do not decode."""
    found: list[tuple[str, Value]] = []
    for raw_key, raw in headers:
        key = raw_key.decode("ascii", "replace")
        if key.startswith((":", "grpc-")) or key in _RESERVED:
            continue
        if not key.endswith("-bin"):
            found.append((key, raw.decode("utf-8", "replace")))
            continue
        # The gRPC protocol allows peers to join several binary values with commas.
        values = [decode_bin(part) for part in raw.split(b",")]
        found.extend((key, value) for value in values if value is not None)
    return tuple(found)


def decode_bin(value: bytes) -> bytes | None:
    """Decode base64 with or without padding; None if it is not base64."""
    try:
        return base64.b64decode(value.strip() + b"=" * (-len(value.strip()) % 4), validate=True)
    except binascii.Error:
        return None


@lru_cache(64)  # nearly all calls have one of a few deadlines
def encode_timeout(seconds: float) -> bytes:
    """Return `grpc-timeout`, rounded up so that the peer never times out before us."""
    for unit in (b"n", b"u", b"m", b"S", b"M"):
        # round() removes the float's error, which ceil would turn into one unit more.
        count = max(0, math.ceil(round(seconds / _UNITS[unit], 3)))
        if count <= _LARGEST:
            return b"%d%b" % (_simplify(count, unit))
    return b"%dH" % min(_LARGEST, math.ceil(seconds / _UNITS[b"H"]))


def _simplify(count: int, unit: bytes) -> tuple[int, bytes]:
    """Return the same time in its largest exact unit, so that HPACK finds equal headers."""
    for larger, factor in ((b"u", 1000), (b"m", 1000), (b"S", 1000)):
        if _UNITS[larger] > _UNITS[unit] and count and count % factor == 0:
            count, unit = count // factor, larger
    return count, unit


def decode_timeout(value: bytes) -> float:
    """Return the seconds of a `grpc-timeout`. Raises ValueError."""
    match = _TIMEOUT.fullmatch(value)
    if match is None:
        raise ValueError(f"invalid grpc-timeout {value!r}")
    return int(match[1]) * _UNITS[match[2]]


def encode_message(message: str) -> bytes:
    """Percent-encode a status message: all bytes of UTF-8 but printable ASCII, and `%`."""
    return quote(message, safe=_PLAIN, encoding="utf-8", errors="replace").encode()


def decode_message(value: bytes) -> str:
    """Decode a status message; invalid escapes are kept, invalid UTF-8 is replaced."""
    return unquote_to_bytes(value).decode("utf-8", "replace")
