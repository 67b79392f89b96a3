"""Memory, huge pages and distances of NUMA nodes."""

from __future__ import annotations

import re

from kubelet_trio.managers.topology.errors import TopologyError
from kubelet_trio.managers.topology.files import KernelFiles, quoted


def read_memory(files: KernelFiles, path: str) -> int | None:
    """Return the bytes of MemTotal in a meminfo, of the machine or of a node."""
    text = files.text(path)
    if text is None:
        return None
    match = re.search(r"MemTotal:[ \t]*([0-9]{1,15}) kB", text)
    if match is None:
        raise TopologyError(path, f"expected MemTotal with a number of kB, found {quoted(text)}")
    return int(match[1]) * 1024


def read_huge_pages(files: KernelFiles, path: str) -> dict[int, int]:
    """Return the number of pages by their size in bytes, also of sizes with none."""
    pages: dict[int, int] = {}
    for name in files.names(path):
        match = re.fullmatch(r"hugepages-([0-9]{1,12})kB", name)
        if match is None:
            continue
        number = files.number(f"{path}/{name}/nr_hugepages")
        if number is None or number < 0:
            raise TopologyError(f"{path}/{name}/nr_hugepages", "expected a number of pages")
        pages[int(match[1]) * 1024] = number
    return dict(sorted(pages.items()))


def read_distances(files: KernelFiles, path: str, nodes: int) -> tuple[int, ...]:
    """Return the distances of a node to all nodes; none if the kernel does not give them all.

    While a node comes or goes, they may be more or fewer than the nodes.
    """
    text = files.text(path) or ""
    words = text.split()
    if not all(re.fullmatch("[0-9]{1,10}", word) for word in words):
        raise TopologyError(path, f"expected distances such as 10 21, found {quoted(text)}")
    return tuple(map(int, words)) if len(words) == nodes else ()
