"""Sets of CPUs as bit masks: CPU 3 is `1 << 3`.

A machine has hundreds of CPUs, and an admission intersects and counts sets of them a thousand
times; on integers each of these takes some 50 ns.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from kubelet_trio.managers.types import mask_of, nodes_of

_MOST = 1 << 13  # Linux' largest NR_CPUS (x86 with MAXSMP); bounds what a foreign list can cost
_RANGE = re.compile(r"([0-9]{1,4})(?:-([0-9]{1,4}))?")


def cpu_mask(cpus: Iterable[int]) -> int:
    """Return the mask of CPUs."""
    return mask_of(cpus)


def cpu_ids(mask: int) -> frozenset[int]:
    """Return the CPUs of a mask."""
    return frozenset(nodes_of(mask))


@lru_cache(maxsize=1024)  # most containers share one pool
def format_mask(mask: int) -> str:
    """Return the CPUs of a mask as the kernel and upstream write them, such as `0-3,8`."""
    parts = []
    while mask:
        first = (mask & -mask).bit_length() - 1
        shifted = mask >> first
        length = (~shifted & (shifted + 1)).bit_length() - 1
        parts.append(str(first) if length == 1 else f"{first}-{first + length - 1}")
        mask &= ~(((1 << length) - 1) << first)
    return ",".join(parts)


def parse_mask(text: str) -> int:
    """Return the mask of a list such as `0-3,8`; 0 for "". Raises ValueError."""
    mask = 0
    for part in text.split(",") if text else ():
        match = _RANGE.fullmatch(part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if last < first or last >= _MOST:
            raise ValueError(f"{part!r} is not a CPU or a range of them such as 0-3")
        mask |= (1 << last + 1) - (1 << first)
    return mask
