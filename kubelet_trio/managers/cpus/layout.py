"""Where the CPUs of a machine are: masks of its cores, caches, NUMA nodes and sockets.

The orders are upstream's, and depend on which CPUs are free: the fullest part comes first, so that
emptier ones stay whole. Source: topology.go and cpu_assignment.go of pkg/kubelet/cm/cpumanager.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from itertools import combinations

from kubelet_trio.managers.types import Cpu, Machine

Parts = Mapping[int, int]  # ID to the mask of its CPUs


class Layout:
    """The parts of a machine, in ascending order of their IDs.

    Attributes:
        all: the mask of all online CPUs.
        nodes: NUMA nodes that have CPUs.
        packages: sockets.
        caches: groups of CPUs with a last-level cache of their own.
        cores: physical cores, by their lowest CPU.
        cpus_per_core: on average, rounded down, as upstream counts; so for a package and a cache.
        packages_first: whether a socket has several NUMA nodes.
    """

    def __init__(self, machine: Machine) -> None:
        lowest: dict[int, int] = {}
        for cpu in machine.cpus:
            lowest[cpu.core] = min(cpu.id, lowest.get(cpu.core, cpu.id))
        self.nodes = _parts(machine.cpus, lambda cpu: cpu.node)
        self.packages = _parts(machine.cpus, lambda cpu: cpu.package)
        self.caches = _parts(machine.cpus, lambda cpu: cpu.cache)
        self.cores = _parts(machine.cpus, lambda cpu: lowest[cpu.core])
        self.all = sum(self.nodes.values())
        count = len(machine.cpus)
        self.cpus_per_core = count // max(len(self.cores), 1)
        self.cpus_per_package = count // max(len(self.packages), 1)
        self.cpus_per_cache = count // max(len(self.caches), 1)
        self.packages_first = len(self.packages) < len(self.nodes)
        self._node_packages = _within(self.nodes, self.packages)
        self._package_nodes = _within(self.packages, self.nodes)
        self._node_caches = _within(self.nodes, self.caches)
        self._node_cores = _within(self.nodes, self.cores)
        self._package_cores = _within(self.packages, self.cores)

    @cached_property
    def node_sets(self) -> tuple[tuple[int, int, int], ...]:
        """All sets of NUMA nodes, smaller ones first: (mask of nodes, how many, mask of CPUs)."""
        return tuple(
            (sum(1 << node for node in nodes), size, sum(self.nodes[node] for node in nodes))
            for size in range(1, len(self.nodes) + 1)
            for nodes in combinations(self.nodes, size)
        )

    def packages_of(self, nodes: int) -> tuple[int, ...]:
        """Return the sockets of a mask of NUMA nodes."""
        found = {
            package
            for node, packages in self._node_packages.items()
            if nodes >> node & 1
            for package, _ in packages
        }
        return tuple(sorted(found))

    def free_nodes(self, free: int) -> list[int]:
        """Return the NUMA nodes with free CPUs."""
        if self.packages_first:
            return list(_below(free, self.free_packages(free), self._package_nodes, self.nodes))
        return _fullest_first(free, self.nodes, self.nodes)

    def free_packages(self, free: int) -> list[int]:
        """Return the sockets with free CPUs."""
        if self.packages_first:
            return _fullest_first(free, self.packages, self.packages)
        return list(_below(free, self.free_nodes(free), self._node_packages, self.packages))

    def free_caches(self, free: int) -> list[int]:
        """Return the caches with free CPUs, node by node."""
        return list(_below(free, self.free_nodes(free), self._node_caches, self.caches))

    def free_cores(self, free: int) -> list[int]:
        """Return the cores with free CPUs, by the smaller one of NUMA node and socket."""
        if self.packages_first:
            return list(_below(free, self.free_nodes(free), self._node_cores, self.cores))
        return list(_below(free, self.free_packages(free), self._package_cores, self.cores))


def _parts(cpus: Iterable[Cpu], of: Callable[[Cpu], int]) -> dict[int, int]:
    parts: dict[int, int] = {}
    for cpu in cpus:
        parts[of(cpu)] = parts.get(of(cpu), 0) | 1 << cpu.id
    return dict(sorted(parts.items()))


def _within(outer: Parts, inner: Parts) -> dict[int, list[tuple[int, int]]]:
    """Return for each outer part the inner ones in it, with the CPUs that both have."""
    return {
        key: [(part, mask & cpus) for part, cpus in inner.items() if mask & cpus]
        for key, mask in outer.items()
    }


def _fullest_first(free: int, parts: Iterable[int], masks: Parts) -> list[int]:
    """Return the parts with free CPUs, those with the fewest first, then by ID."""
    counted = [((free & masks[part]).bit_count(), part) for part in parts]
    return [part for count, part in sorted(counted) if count]


def _below(
    free: int,
    outer: Iterable[int],
    within: Mapping[int, list[tuple[int, int]]],
    masks: Parts,
) -> Iterator[int]:
    """Yield the inner parts with free CPUs in each outer one, in the order of these."""
    for key in outer:
        yield from _fullest_first(free, [p for p, both in within[key] if free & both], masks)
