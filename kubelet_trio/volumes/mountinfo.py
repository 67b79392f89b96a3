r"""Read the kernel's table of mounts, /proc/self/mountinfo (proc_pid_mountinfo(5)).

A line is `id parent major:minor root path options [tags...] - type source super-options`, with
space, tab, newline and backslash in names written as octal (`\040`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

_OCTAL = re.compile(r"\\([0-7]{3})")
_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class MountPoint:
    """One entry of the table."""

    path: str  # where it is mounted
    fstype: str
    source: str
    root: str = "/"  # the mounted part of the file system: not `/` in most bind mounts
    options: tuple[str, ...] = ()  # of this mount: ro, noexec, ...
    super_options: tuple[str, ...] = ()  # of the file system: size=, ...
    shared: bool = False  # whether mounts below it propagate to other namespaces
    device: str = ""  # the file system's device number, `major:minor`


def read_mountinfo(path: Path = Path("/proc/self/mountinfo")) -> list[MountPoint]:
    """Read the table, in the kernel's order. Raises OSError."""
    # surrogateescape: the kernel does not care about the encoding of names.
    text = path.read_text("utf-8", "surrogateescape")
    # One read is not atomic and can miss entries while others mount and unmount, so two reads must
    # agree; like ConsistentRead (k8s.io/utils/io), which the Go kubelet uses.
    for _ in range(_ATTEMPTS):
        again = path.read_text("utf-8", "surrogateescape")
        if again == text:
            break
        text = again
    return parse_mountinfo(text)


def parse_mountinfo(text: str) -> list[MountPoint]:
    """Parse a table; skip malformed lines."""
    # Not splitlines(): the kernel escapes no other line separator, and names may contain them.
    return [mount for line in text.split("\n") if (mount := _parse_line(line)) is not None]


def _parse_line(line: str) -> MountPoint | None:
    # The number of tags varies: the separator ends them (proc_pid_mountinfo(5)).
    head, separator, tail = line.partition(" - ")
    fields, source = head.split(" "), tail.split(" ")
    if not separator or len(fields) < 6 or len(source) < 2:
        return None
    return MountPoint(
        path=_unescape(fields[4]),
        fstype=source[0],
        source=_unescape(source[1]),
        root=_unescape(fields[3]),
        options=_options(fields[5]),
        super_options=_options(source[2]) if len(source) > 2 else (),
        shared=any(tag.startswith("shared:") for tag in fields[6:]),
        device=fields[2],
    )


@lru_cache(maxsize=256)  # a node has thousands of mounts with the same few sets of options
def _options(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def _unescape(name: str) -> str:
    if "\\" not in name:
        return name
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), name)
