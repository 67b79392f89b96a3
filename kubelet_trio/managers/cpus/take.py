"""Choose CPUs so that they are close together: whole nodes and sockets, caches, cores, threads.

Source: takeByTopologyNUMAPacked of pkg/kubelet/cm/cpumanager; its choice is kept to the CPU. It
differs where upstream takes a part of the machine of which some CPUs are not free: with cores or
sockets of several sizes, it compares with their average.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, islice

from kubelet_trio.managers.cpus.errors import NotEnoughCpusError
from kubelet_trio.managers.cpus.layout import Layout, Parts
from kubelet_trio.managers.types import nodes_of


def take_packed(
    layout: Layout, available: int, count: int, *, spread: bool = False, by_cache: bool = False
) -> int:
    """Return the mask of `count` CPUs of the available ones.

    With `spread`, no whole cores are looked for; with `by_cache`, CPUs that share a last-level
    cache are preferred. Raises NotEnoughCpusError.
    """
    if count > available.bit_count():
        raise NotEnoughCpusError(count, available.bit_count())
    taking = _Taking(layout, available, count)
    levels = [taking.whole_nodes, taking.whole_packages]
    if layout.packages_first:
        levels.reverse()
    if by_cache:
        levels.append(taking.caches)
    if not spread:
        levels.append(taking.whole_cores)
    for take in levels:
        if taking.needed > 0:
            take()
    if taking.needed > 0:
        taking.threads(spread=spread)
    return taking.taken


class _Taking:
    """CPUs on their way from the free ones to the taken ones."""

    def __init__(self, layout: Layout, available: int, count: int) -> None:
        self._layout = layout
        self._free = available
        self.needed = count
        self.taken = 0

    def whole_nodes(self) -> None:
        self._whole(self._layout.free_nodes(self._free), self._layout.nodes)

    def whole_packages(self) -> None:
        layout = self._layout
        ids = layout.free_packages(self._free)
        self._whole(ids, layout.packages, layout.cpus_per_package)

    def whole_cores(self) -> None:
        layout = self._layout
        self._whole(layout.free_cores(self._free), layout.cores, layout.cpus_per_core)

    def caches(self) -> None:
        """Take whole caches while enough is asked for, and the rest from the first that fits."""
        layout = self._layout
        for cache in layout.free_caches(self._free):
            if self.needed >= layout.cpus_per_cache:
                self._whole(layout.free_caches(self._free), layout.caches)
            if self.needed > 0:
                self._part_of_cache(layout.caches[cache])
            if self.needed <= 0:
                return

    def threads(self, *, spread: bool) -> None:
        """Take single CPUs, those of half-used cores first; with `spread` by ID in each socket."""
        layout, free = self._layout, self._free
        if spread:
            parts = (layout.packages[package] for package in layout.free_packages(free))
        else:
            parts = (layout.cores[core] for core in layout.free_cores(free))
        ordered = chain.from_iterable(nodes_of(free & part) for part in parts)
        # A socket in two nodes comes twice.
        for cpu in islice(dict.fromkeys(ordered), self.needed):
            self._take(1 << cpu)

    def _take(self, cpus: int) -> None:
        self._free &= ~cpus
        self.taken |= cpus
        self.needed -= cpus.bit_count()

    def _whole(self, ids: Iterable[int], parts: Parts, size: int | None = None) -> None:
        """Take parts that are free and not larger than what is needed; `size`: only of this one."""
        for key in ids:
            cpus = parts[key]
            count = cpus.bit_count()
            if count <= self.needed and cpus & self._free == cpus and size in (None, count):
                self._take(cpus)

    def _part_of_cache(self, cache: int) -> None:
        """Take all that is needed from one cache, if its first free cores have just as much."""
        per_core = self._layout.cpus_per_core
        in_cache = (cpus for cpus in self._layout.cores.values() if cpus & cache & self._free)
        cores = islice(in_cache, -(-self.needed // per_core))
        found = sum(self._free & cpus for cpus in cores)
        if self.needed % 2 and per_core > 1 and found.bit_count() > self.needed:
            found &= ~(1 << found.bit_length() - 1)  # one thread of the last core stays free
        if found.bit_count() == self.needed:
            self._take(found)
