"""The masks of WebSocket frames: a client XORs what it sends with four bytes, over and over.

Python has no fast XOR of bytes: the best ways cost some 2 ns a byte, more than TLS. OpenSSL, which
Python's `ssl` has loaded, has one behind a public function: its OFB mode XORs data with a key
stream, each block of which it makes from the one before by a function that the caller names. With
one that does nothing the key stream is the first block repeated. `openssl/modes.h`:

    void CRYPTO_ofb128_encrypt(const unsigned char *in, unsigned char *out, size_t len,
                               const void *key, unsigned char ivec[16], int *num,
                               block128_f block);

Where that is not to be had (a Python that hides OpenSSL's functions), Python does it.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

_SMALL = 64  # bytes that are faster in Python


class Unmasked:
    """What was received, without its masks. `content` is right where `apply` has been called."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        room = bytearray(len(data))
        self.content = memoryview(room)
        self._encrypt = openssl()
        if self._encrypt is not None and data:
            self._used = ctypes.c_int(0)  # bytes of the block; also keeps their place
            self._in = ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0
            self._out = ctypes.addressof(ctypes.c_char.from_buffer(room))

    def apply(self, start: int, end: int, mask: bytes) -> memoryview:
        """Return the bytes from `start` to `end`, with this mask of four bytes from `start` on."""
        size = end - start
        if size < _SMALL or self._encrypt is None:
            self.content[start:end] = unmask_in_python(self._data[start:end], mask)
        else:
            self._used.value = 0
            self._encrypt(
                self._in + start, self._out + start, size, None, mask * 4, self._used, _nothing()
            )
        return self.content[start:end]


def unmask_in_python(data: bytes, mask: bytes) -> bytes:
    """Return data with the mask applied, by one addition without carry of two large numbers."""
    size = len(data)
    repeated = (mask * (size // 4 + 1))[:size]
    number = int.from_bytes(data, "little") ^ int.from_bytes(repeated, "little")
    return number.to_bytes(size, "little")


@functools.cache
def openssl() -> Callable[..., Any] | None:
    """Return OpenSSL's function, ready to be called; None if it is not to be had."""
    try:
        import _ssl

        encrypt = ctypes.CDLL(_ssl.__file__).CRYPTO_ofb128_encrypt
        _nothing()
    except (ImportError, OSError, AttributeError):
        return None
    encrypt.restype = None
    pointer = ctypes.c_void_p
    number = ctypes.POINTER(ctypes.c_int)
    encrypt.argtypes = [
        pointer, pointer, ctypes.c_size_t, pointer, ctypes.c_char_p, number, pointer,
    ]  # fmt: skip
    return encrypt


@functools.cache
def _nothing() -> int:
    """Return the address of a function that leaves the block as it is. Raises as ctypes does."""
    # labs(3) looks at its argument alone.
    return ctypes.cast(ctypes.CDLL(None).labs, ctypes.c_void_p).value or 0
