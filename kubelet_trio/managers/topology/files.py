"""Reads small files of /sys and /proc, each with a bound, and their numbers.

A file that is missing is None: kernels and containers leave many out. Any other failure, and any
text that is not what the kernel writes, is a `TopologyError` with the file's name.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from kubelet_trio.managers.topology.errors import TopologyError
from kubelet_trio.model import parse_cpus

_LIMIT = 64 * 1024  # bytes: a list of every second of 8,192 CPUs has 20 KiB
_SHOWN = 40  # characters of a text that an error quotes
_LAST_NODE = 1023  # Linux' largest MAX_NUMNODES is 1,024; bounds the masks of nodes


@dataclass(frozen=True, slots=True)
class KernelFiles:
    """The files below a root; every path is relative to it. Blocks."""

    root: Path

    def text(self, path: str, limit: int = _LIMIT) -> str | None:
        """Return a file's text without blanks at its ends, or None if it is missing."""
        try:
            with open(self.root / path, "rb", buffering=0) as file:
                data = _read(file.fileno(), limit + 1)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as exc:
            raise TopologyError(path, exc.strerror or str(exc)) from exc
        if len(data) > limit:
            raise TopologyError(path, f"it is larger than {limit} bytes")
        # Some kernels of ARM servers end a list of CPUs with a NUL.
        return data.decode("ascii", "replace").strip(" \t\n\0")

    def names(self, path: str) -> list[str]:
        """Return the names in a directory, sorted by their characters; none if it is missing."""
        try:
            return sorted(os.listdir(self.root / path))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as exc:
            raise TopologyError(path, exc.strerror or str(exc)) from exc

    def number(self, path: str) -> int | None:
        """Return the number that is all of a file; negative ones stand for "unknown"."""
        text = self.text(path)
        if text is None:
            return None
        if not re.fullmatch(r"-?[0-9]{1,10}", text):
            raise TopologyError(path, f"expected a number, found {quoted(text)}")
        return int(text)

    def cpus(self, path: str) -> frozenset[int] | None:
        """Return the CPUs of a list such as `0-3,8`."""
        text = self.text(path)
        if text is None:
            return None
        # Some kernels print this for a mask that was never set up.
        if text == "(null)":
            return frozenset()
        try:
            return parse_cpus(text)
        except ValueError as exc:
            problem = f"expected a list of CPUs such as 0-3,8, found {quoted(text)}"
            raise TopologyError(path, problem) from exc

    def numbered(self, path: str, prefix: str) -> list[int]:
        """Return the numbers of the entries `<prefix><number>` of a directory."""
        entry = re.compile(rf"{prefix}([0-9]{{1,5}})")
        return sorted(int(match[1]) for match in map(entry.fullmatch, self.names(path)) if match)

    def nodes(self, path: str) -> list[int]:
        """Return the NUMA nodes with a directory below `path`."""
        found = self.numbered(path, "node")
        if found and found[-1] > _LAST_NODE:
            raise TopologyError(f"{path}/node{found[-1]}", f"no node is above {_LAST_NODE}")
        return found


def quoted(text: str) -> str:
    """Return the beginning of a foreign text, as an error may show it."""
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")


def _read(descriptor: int, limit: int) -> bytes:
    """Return at most `limit` bytes; sysfs and procfs may return less than a read asks for."""
    pieces: list[bytes] = []
    while limit > 0 and (piece := os.read(descriptor, limit)):
        pieces.append(piece)
        limit -= len(piece)
    return b"".join(pieces)
