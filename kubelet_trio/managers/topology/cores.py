"""Which hardware threads are a core, which cores share a cache, as the Go kubelet groups them.

Its CPU manager breaks ties by these numbers: a core is named by its lowest CPU, and an uncore
cache by the ID that the kernel gives it (cAdvisor's sysinfo, then Discover of
pkg/kubelet/cm/cpumanager/topology).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from kubelet_trio.managers.topology.errors import TopologyError
from kubelet_trio.managers.topology.files import KernelFiles, quoted

CPU_DIR = "sys/devices/system/cpu"
_CORE_LEVELS = 2  # the levels of caches that belong to a core


@dataclass(frozen=True, slots=True)
class Core:
    """One physical core and its online threads, in the order in which cAdvisor lists them."""

    threads: tuple[int, ...]
    package: int
    die: int  # within its package

    @property
    def id(self) -> int:
        """Its number, unique on the machine."""
        return min(self.threads)


def read_cores(files: KernelFiles, cpus: Iterable[int]) -> list[Core]:
    """Return the cores of some online CPUs of one node; CPUs without a core's ID are left out."""
    threads: dict[tuple[object, ...], list[int]] = {}
    places: dict[tuple[object, ...], tuple[int, int]] = {}
    # Glob of Go sorts by characters: cpu10 comes before cpu2. The order decides which thread's
    # caches are those of the core.
    for cpu in sorted(cpus, key=str):
        base = f"{CPU_DIR}/cpu{cpu}/topology"
        core = files.number(f"{base}/core_id")
        package = files.number(f"{base}/physical_package_id")
        if core is None or package is None:
            continue
        # cAdvisor takes two cores with one core_id in a package for one, unless it is s390x. The
        # ID repeats in each cluster of ARM, die of x86, and book of s390: what tells them apart
        # is the kernel's own list of the threads.
        key = (core, package, files.text(f"{base}/thread_siblings_list"))
        threads.setdefault(key, []).append(cpu)
        if key not in places:
            die = files.number(f"{base}/die_id")
            places[key] = (package, die if die is not None else 0)
    return [Core(tuple(group), *places[key]) for key, group in threads.items()]


def uncore_caches(files: KernelFiles, cores: list[Core]) -> dict[int, int]:
    """Return the uncore cache of each core of one node, by the core's number.

    It is a cache above level 2 that is not the whole node's. Without one, cores belong to the
    cache of their package's number, as in the Go kubelet.
    """
    caches = {core.id: core.package for core in cores}
    for core in cores:
        found = _read_caches(files, core.threads[0])
        if found is None:
            # The first that cannot be read ends the search in this node: cAdvisor does so.
            break
        in_node = len(cores) * len(core.threads)
        shared = [cache for cache, level, size in found if level > _CORE_LEVELS and size != in_node]
        if shared:
            caches[core.id] = shared[0]
    return caches


def _read_caches(files: KernelFiles, cpu: int) -> list[tuple[int, int, int]] | None:
    """Return ID, level and number of CPUs of a CPU's caches, or None if one is incomplete."""
    base = f"{CPU_DIR}/cpu{cpu}"
    # s390x has books, and its caches have no IDs; there all are 0.
    has_ids = files.text(f"{base}/topology/book_id") is None
    names = files.names(f"{base}/cache")
    found = []
    for name in names:
        if not name.startswith("index"):
            continue
        cache = f"{base}/cache/{name}"
        number = _leading(files, f"{cache}/id") if has_ids else 0
        size = _leading(files, f"{cache}/size", "K")
        level = _leading(files, f"{cache}/level")
        cpus = _count_cpus(files, f"{cache}/shared_cpu_map")
        if None in (number, size, level, cpus) or files.text(f"{cache}/type") is None:
            return None
        found.append((number or 0, level or 0, cpus or 0))
    return found if names else None


def _leading(files: KernelFiles, path: str, unit: str = "") -> int | None:
    """Return the number that a file begins with."""
    match = re.match(rf"-?[0-9]{{1,10}}(?={unit})", files.text(path) or "")
    return int(match[0]) if match else None


def _count_cpus(files: KernelFiles, path: str) -> int | None:
    """Return the number of CPUs of a mask such as `ff,ffffffff`."""
    text = files.text(path)
    if text is None:
        return None
    words = text.split(",")
    if not all(re.fullmatch(r"[0-9A-Fa-f]{1,16}", word.strip()) for word in words):
        raise TopologyError(path, f"expected a mask of CPUs, found {quoted(text)}")
    return sum(int(word, 16).bit_count() for word in words)
