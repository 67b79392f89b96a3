"""Hash functions, without OpenSSL: `hashlib` would load it, which costs 4 MB."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hashlib import blake2b, sha256
else:
    # The same C modules that hashlib uses; `random` imports them in this way as well. They are
    # private to CPython, and not every build has them.
    try:
        from _blake2 import blake2b
    except ImportError:
        from hashlib import blake2b
    try:
        from _sha2 import sha256  # since Python 3.12
    except ImportError:
        try:
            from _sha256 import sha256
        except ImportError:
            from hashlib import sha256

__all__ = ["blake2b", "fnv1a_32", "sha256"]

_OFFSET_BASIS = 0x811C9DC5
_PRIME = 0x01000193


def fnv1a_32(data: bytes) -> int:
    """Return the 32-bit FNV-1a hash of `data`."""
    value = _OFFSET_BASIS
    for byte in data:
        value = ((value ^ byte) * _PRIME) & 0xFFFFFFFF
    return value
