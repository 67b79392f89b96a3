"""Lists of CPUs and of memory nodes as the kernel writes them: `0-3,8` (cpuset(7))."""

from __future__ import annotations

import re
from collections.abc import Iterable

_LAST_CPU = (1 << 16) - 1  # far beyond Linux' largest NR_CPUS (8,192); bounds the set


def parse_cpus(text: str) -> frozenset[int]:
    """Return the CPUs of a list such as `0-3,8`. Raises ValueError."""
    found: set[int] = set()
    named = 0
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", part)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise ValueError(f"{text!r} is not a list of CPUs such as 0-3,8")
        first, last = int(match[1]), int(match[2] or match[1])
        if last > _LAST_CPU:
            raise ValueError(f"{part!r}: no machine has a CPU above {_LAST_CPU}")
        named += last - first + 1
        if named > 2 * _LAST_CPU:
            raise ValueError("a list of CPUs names the same ones again and again")
        found.update(range(first, last + 1))
    return frozenset(found)


def format_cpus(cpus: Iterable[int]) -> str:
    """Return the shortest list of CPUs, in ascending order; "" for none."""
    parts: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if parts and cpu == parts[-1][1] + 1:
            parts[-1][1] = cpu
        else:
            parts.append([cpu, cpu])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)
