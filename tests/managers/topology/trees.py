"""Recorded machines: the files of /sys and /proc that the reader looks at, as lines of text.

A line is `path: content`, and `\\n` in a content is a new line. `cpu{0-3,8}` in a path stands for
those of cpu0, cpu1, cpu2, cpu3 and cpu8, which all have this content. Caches of one core (levels
1 and 2) are left out.

To record a machine, or an unpacked dump of one:

    python -m tests.managers.topology.trees ROOT > tests/managers/topology/data/NAME.txt
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from kubelet_trio.model import format_cpus, parse_cpus

DATA = Path(__file__).parent / "data"

_CPU = "sys/devices/system/cpu"
_NODE = "sys/devices/system/node"
_TOPOLOGY = (
    "core_id",
    "physical_package_id",
    "die_id",
    "book_id",
    "drawer_id",
    "thread_siblings_list",
)
_CACHE = ("id", "level", "size", "type", "shared_cpu_map")
_MEMORY = re.compile(r"^.*MemTotal:.*$", re.MULTILINE)
_NUMBERED = re.compile(rf"({_CPU}/cpu)([0-9]+)(/.*)")


def names() -> list[str]:
    """Return the recorded machines."""
    return sorted(path.stem for path in DATA.glob("*.txt"))


def plant(name: str, root: Path, data: Path = DATA) -> Path:
    """Write the files of a recorded machine below `root`."""
    for line in (data / f"{name}.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            path, _, content = line.partition(":")
            for each in _expanded(path):
                write(root, each, content.strip().replace("\\n", "\n"))
    return root


def write(root: Path, path: str, content: str) -> None:
    """Write one file, with the new line at the end that the kernel writes."""
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{content}\n")


def record(root: Path) -> str:
    """Return the machine below `root` as text."""
    lines: dict[tuple[str, str, str], list[int]] = {}
    for path, content in _files(root):
        match = _NUMBERED.fullmatch(path)
        if match is None:
            lines[path, "", content] = []
        else:
            lines.setdefault((match[1], match[3], content), []).append(int(match[2]))
    return "".join(
        f"{before}{_braced(cpus)}{after}: {content}".rstrip() + "\n"
        for (before, after, content), cpus in lines.items()
    )


def _braced(cpus: list[int]) -> str:
    return "" if not cpus else str(cpus[0]) if len(cpus) == 1 else f"{{{format_cpus(cpus)}}}"


def _expanded(path: str) -> Iterator[str]:
    match = re.fullmatch(r"([^{]*)\{([0-9,-]+)\}(.*)", path)
    if match is None:
        yield path
        return
    for cpu in sorted(parse_cpus(match[2])):
        yield f"{match[1]}{cpu}{match[3]}"


def _files(root: Path) -> Iterator[tuple[str, str]]:
    for name in ("online", "present", "isolated"):
        yield from _file(root, f"{_CPU}/{name}")
    if not (root / _CPU / "present").exists():  # older dumps: those with a directory
        yield f"{_CPU}/present", format_cpus(_entries(root / _CPU, "cpu"))
    for number in _entries(root / _CPU, "cpu"):
        base = f"{_CPU}/cpu{number}"
        for name in _TOPOLOGY:
            yield from _file(root, f"{base}/topology/{name}")
        for index in _entries(root / base / "cache", "index"):
            cache = f"{base}/cache/index{index}"
            level = root / cache / "level"
            if level.exists() and int(level.read_text()) > 2:
                for name in _CACHE:
                    yield from _file(root, f"{cache}/{name}")
    for number in _entries(root / _NODE, "node"):
        base = f"{_NODE}/node{number}"
        if (root / base / "cpulist").exists():
            yield from _file(root, f"{base}/cpulist")
        elif (root / base / "cpumap").exists():  # older dumps
            yield f"{base}/cpulist", format_cpus(_mask((root / base / "cpumap").read_text()))
        yield from _memory(root, f"{base}/meminfo")
        yield from _file(root, f"{base}/distance")
        yield from _pages(root, f"{base}/hugepages")
    yield from _pages(root, "sys/kernel/mm/hugepages")
    yield from _memory(root, "proc/meminfo")


def _entries(directory: Path, prefix: str) -> list[int]:
    if not directory.exists():
        return []
    matches = (re.fullmatch(rf"{prefix}([0-9]+)", name) for name in os.listdir(directory))
    return sorted(int(match[1]) for match in matches if match)


def _mask(text: str) -> list[int]:
    words = "".join(word.strip().zfill(8) for word in text.split(","))
    mask = int(words, 16)
    return [cpu for cpu in range(mask.bit_length()) if mask >> cpu & 1]


def _file(root: Path, path: str) -> Iterator[tuple[str, str]]:
    if (root / path).exists():
        yield path, (root / path).read_text().strip(" \n\0").replace("\n", "\\n")


def _memory(root: Path, path: str) -> Iterator[tuple[str, str]]:
    if (root / path).exists():
        match = _MEMORY.search((root / path).read_text())
        yield path, match[0] if match else ""


def _pages(root: Path, path: str) -> Iterator[tuple[str, str]]:
    for entry in sorted((root / path).glob("hugepages-*")):
        yield from _file(root, f"{path}/{entry.name}/nr_hugepages")


if __name__ == "__main__":
    sys.stdout.write(record(Path(sys.argv[1])))
