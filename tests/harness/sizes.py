"""How much memory does it take to read what somebody sends? Measured, and bounded by its size.

Two sizes of one shape are tried. The peak may be so many times the input as is said of it, beside
what any call costs, and four times the input may take four times the memory.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from typing import Any, NamedTuple

_SLACK = 1.5  # on four times the memory: tables that double, buffers that grow
FIXED = 1 << 19  # bytes: caches that the first call fills, the event loop's own


class Receiver(NamedTuple):
    """Something that reads what others send, and a shape that may be its worst, of `n` bytes."""

    name: str
    read: Callable[[Any], object]
    make: Callable[[int], Any]
    per_byte: float = 64.0
    errors: tuple[type[Exception], ...] = (ValueError, OSError)
    cap: int = 0  # bytes that are never exceeded, where it grows faster than the input up to there


def peak(receiver: Receiver, value: object) -> int:
    """Return how many bytes are held at once while `value` is read, the answer included."""
    gc.collect()
    tracemalloc.start()
    try:
        answer = read(receiver, value)
        _, most = tracemalloc.get_traced_memory()
        del answer
    finally:
        tracemalloc.stop()
    return most


def check_bounded(receiver: Receiver, n: int = 4_000) -> None:
    """Fail where reading takes more memory than is said, or grows faster than the input."""
    read(receiver, receiver.make(100))  # imports, tables that are made once
    if receiver.cap:
        large = peak(receiver, receiver.make(16 * n))
        assert large <= receiver.cap, f"{receiver.name}: {large} bytes, {receiver.cap} are said"
        return
    small, large = (peak(receiver, receiver.make(n * k)) for k in (1, 4))
    most = receiver.per_byte * 4 * n + FIXED
    assert large <= most, f"{receiver.name}: {large} bytes for {4 * n}, at most {most:.0f} are said"
    assert large <= 4 * small * _SLACK + FIXED, (receiver.name, small, large)


def read(receiver: Receiver, value: object) -> object:
    """Return what is made of a value, None where it is refused."""
    try:
        return receiver.read(value)
    except receiver.errors:
        return None  # refused: that takes memory as well
