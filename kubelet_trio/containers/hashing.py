"""The container hash: which changes of a spec make a running container another one.

Only name and image count (Go kubelet since 1.31), so that neither defaults added by a
newer agent nor a resized container restart anything. The number must be the Go
kubelet's own, bit for bit: a node taken over from it has this hash on every container.
"""

from __future__ import annotations

from lightkube.models.core_v1 import Container
from msgspec import json

_OFFSET_BASIS = 0x811C9DC5
_PRIME = 0x01000193

# What Go's JSON encoder escapes and others do not.
_GO_ESCAPES = {
    "<": "\\u003c",
    ">": "\\u003e",
    "&": "\\u0026",
    "\u2028": "\\u2028",
    "\u2029": "\\u2029",
}


def container_hash(container: Container) -> int:
    """Return the 32-bit hash of a container's definition.

    It is FNV-1a over the text that Go's deep printer makes of the encoded JSON's bytes
    (`([]uint8)[123 34 ...]`), with the two fields in the order of their names.
    """
    text = json.encode({"image": container.image or "", "name": container.name}).decode()
    for plain, escaped in _GO_ESCAPES.items():
        text = text.replace(plain, escaped)
    printed = "([]uint8)[" + " ".join(str(byte) for byte in text.encode()) + "]"
    return fnv1a_32(printed.encode())


def fnv1a_32(data: bytes) -> int:
    """Return the 32-bit FNV-1a hash of `data`."""
    value = _OFFSET_BASIS
    for byte in data:
        value = ((value ^ byte) * _PRIME) & 0xFFFFFFFF
    return value
