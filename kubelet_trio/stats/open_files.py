"""Files of the kernel, and how many of them may stay open."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

_MOST = 1 << 18  # bytes of one file
# Bytes that nearly every file fits in. Python allocates them before it reads: the memory of a large
# buffer comes from the system each time, which takes ten times as long as the reading.
USUAL = 1 << 11
_PIECE = 1 << 14  # bytes; the kernel writes most of its files a page at a time


@dataclass(frozen=True, slots=True)
class Host:
    """Paths of the kernel's files. `mounts` is by controller; on version 2 its only key is ""."""

    version: int
    mounts: Mapping[str, str]
    proc: str = "/proc"
    sys: str = "/sys"


@dataclass(slots=True)
class Room:
    """How many files may be open, and how many more may be opened."""

    most: int
    left: int


def content(descriptor: int) -> bytes:
    """Return a small file's content. Raises OSError."""
    found = os.pread(descriptor, USUAL, 0)
    if len(found) == USUAL:
        found += _rest(descriptor)
    return found


def _rest(descriptor: int) -> bytes:
    """Return what follows the first bytes of a file, up to a limit. Raises OSError."""
    pieces, place = [], USUAL
    while place < _MOST and (piece := os.pread(descriptor, _PIECE, place)):
        pieces.append(piece)
        place += len(piece)
    return b"".join(pieces)
