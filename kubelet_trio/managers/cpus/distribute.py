"""Choose CPUs in equal shares of as few NUMA nodes as can give them (KEP-2902).

Of all sets of that many nodes, the one wins after which the machine's nodes are the most alike.
Source: takeByTopologyNUMADistributed of pkg/kubelet/cm/cpumanager. It differs in two cases. With
four or more of at least five nodes, upstream's search overwrites the set that it had chosen with
the last one that begins alike. And where the remainder does not divide into groups, it never ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import sqrt

from kubelet_trio.managers.cpus.errors import NotEnoughCpusError
from kubelet_trio.managers.cpus.layout import Layout
from kubelet_trio.managers.cpus.take import take_packed

Shares = dict[int, list[int]]  # NUMA node to the numbers of CPUs to take there, one after another


def take_distributed(
    layout: Layout, available: int, count: int, group: int, *, spread: bool = False
) -> int:
    """Return the mask of `count` CPUs of the available ones, in groups of `group` from each node.

    Where no shares fit, they are packed. Raises NotEnoughCpusError.
    """
    if count % group or count <= 0:
        return take_packed(layout, available, count, spread=spread)
    if count > available.bit_count():
        raise NotEnoughCpusError(count, available.bit_count())
    nodes = layout.free_nodes(available)
    free = {node: (available & layout.nodes[node]).bit_count() for node in nodes}
    search = _Search(free, count, group)
    for size in range(_fewest_nodes(layout, count, group), min(count // group, len(nodes)) + 1):
        shares = search.best(size)
        if shares is not None:
            return _take(layout, available, shares, spread=spread)
    return take_packed(layout, available, count, spread=spread)


def _take(layout: Layout, available: int, shares: Shares, *, spread: bool) -> int:
    taken = 0
    for node, counts in shares.items():
        free = available & layout.nodes[node]
        for count in counts:
            taken |= take_packed(layout, free & ~taken, count, spread=spread)
    return taken


def _fewest_nodes(layout: Layout, count: int, group: int) -> int:
    """Return how many nodes it takes at least, if all were free."""
    groups = -(-layout.all.bit_count() // group)
    per_node = -(-groups // len(layout.nodes))
    return -(-(count // group) // per_node)


@dataclass(frozen=True, slots=True)
class _Search:
    """The search for the best shares.

    Attributes:
        free: the number of free CPUs by NUMA node, in the order in which nodes are preferred.
        count: how many CPUs are asked for.
        group: how many are taken at once.
    """

    free: Mapping[int, int]
    count: int
    group: int

    def best(self, size: int) -> Shares | None:
        """Return the shares of the best set of `size` nodes; None if none fits."""
        best: tuple[int, Shares] | None = None
        for nodes in combinations(self.free, size):
            found = self._share_out(nodes)
            if found is not None and (best is None or found[0] < best[0]):
                best = found
                if not best[0]:
                    break
        return None if best is None else best[1]

    def _share_out(self, nodes: Sequence[int]) -> tuple[int, Shares] | None:
        """Return how uneven the machine is with shares of these nodes, and the shares."""
        groups = sum(self.free[node] // self.group for node in nodes)
        share = self.count // len(nodes) // self.group * self.group
        if groups * self.group < self.count or any(self.free[node] < share for node in nodes):
            return None
        left = {node: free - share * (node in nodes) for node, free in self.free.items()}
        remainder = self.count - share * len(nodes)
        if not remainder:
            return self._unevenness(left), {node: [share] for node in nodes}
        rest = self._remainder(left, [n for n in nodes if left[n] >= self.group], remainder)
        if rest is None:
            return None
        uneven, times = rest
        return uneven, {node: [share] + [self.group] * times.get(node, 0) for node in nodes}

    def _remainder(
        self, left: Mapping[int, int], nodes: Sequence[int], remainder: int
    ) -> tuple[int, dict[int, int]] | None:
        """Return which nodes give the remainder, and how many groups each."""
        best: tuple[int, dict[int, int]] | None = None
        seen: set[tuple[int, ...]] = set()
        for size in range(len(nodes), 0, -1):
            for subset in combinations(nodes, size):
                # Nodes at the end have nothing to give if those before them have enough.
                givers = subset[: remainder // self.group]
                if givers in seen or sum(left[node] for node in subset) < remainder:
                    continue
                seen.add(givers)
                times = self._hand_out(left, subset, remainder)
                if times is None:
                    continue
                after = {n: count - self.group * times.get(n, 0) for n, count in left.items()}
                uneven = self._unevenness(after)
                if best is None or uneven < best[0]:
                    best = uneven, times
        return best

    def _hand_out(
        self, left: Mapping[int, int], nodes: Sequence[int], remainder: int
    ) -> dict[int, int] | None:
        """Return how many groups each node gives, in turn; None if they have too few."""
        times = dict.fromkeys(nodes, 0)
        while remainder:
            before = remainder
            for node in nodes:
                if remainder and left[node] - self.group * times[node] >= self.group:
                    times[node] += 1
                    remainder -= self.group
            if remainder == before:
                return None
        return times

    def _unevenness(self, left: Mapping[int, int]) -> int:
        """Return the standard deviation of the free CPUs, in thousandths.

        Rounded as upstream does, so that the same sets of nodes count as equal; in integers.
        """
        mean = _rounded(1000 * sum(left.values()) / len(left))
        squares = sum((1000 * count - mean) ** 2 for count in left.values())
        return _rounded(sqrt(squares / len(left)))


def _rounded(value: float) -> int:
    whole = int(value)
    return whole + (value - whole >= 0.5)
