"""Finds the sets of NUMA nodes that a request for memory fits on.

A set of one node may hold any number of blocks, as long as the node is in no group. A set of
several is either a group that exists, or nodes without any block. So a search tries the free
nodes only, and gives up a branch as soon as the largest nodes that are left cannot complete it:
machines with many nodes (GPUs bring some without memory) would have 2^n sets to try.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from kubelet_trio.managers.memory.state import MemoryTable, NodeMemory, Nodes
from kubelet_trio.managers.types import nodes_of

_NOTHING = MemoryTable(0, 0, 0, 0, 0)
Amounts = tuple[int, ...]  # bytes, one for each kind of memory that is wanted


def placements(
    nodes: Nodes, wanted: Mapping[str, int], reusable: Mapping[tuple[int, str], int]
) -> Iterator[int]:
    """Yield the masks of nodes where a request fits, in upstream's order.

    Small sets come first, of one size in lexicographic order. A mask of `reusable` (see
    `Reusable.sizes`) also has what the pod's init containers leave there.
    """
    known = {
        node: memory for node, memory in nodes.items() if wanted.keys() <= memory.tables.keys()
    }
    yield from (
        1 << node
        for node, memory in known.items()
        if memory.cells.bit_count() <= 1 and _fits(nodes, 1 << node, wanted, reusable)
    )
    groups = {memory.cells for memory in known.values() if memory.assignments}
    groups = {g for g in groups if _is_group(nodes, g) and _fits(nodes, g, wanted, reusable)}
    idle = {node: memory for node, memory in known.items() if not memory.assignments}
    search = _Search.of(idle, wanted, "free")
    for size in range(2, len(nodes) + 1):
        found = search.sets(size)
        there = sorted((g for g in groups if g.bit_count() == size), key=_order)
        yield from heapq.merge(found, there, key=_order) if there else found


def fewest_nodes(nodes: Nodes, wanted: Mapping[str, int]) -> int:
    """Return how many nodes a request needs on this machine when nothing else runs.

    The number of all nodes if it never fits. Hints of as many nodes are preferred.
    """
    known = {
        node: memory for node, memory in nodes.items() if wanted.keys() <= memory.tables.keys()
    }
    search = _Search.of(known, wanted, "allocatable")
    for size in range(1, len(nodes)):
        if next(search.sets(size), None) is not None:
            return size
    return len(nodes)


def has_free(nodes: Nodes, mask: int, wanted: Mapping[str, int]) -> bool:
    """Return whether a set of nodes has enough free memory of all kinds.

    Not if the machine lacks one of the nodes: device plugins may name any.
    """
    return all(
        node in nodes and wanted.keys() <= nodes[node].tables.keys() for node in nodes_of(mask)
    ) and all(_sum(nodes, mask, name, "free") >= size for name, size in wanted.items())


def breaks_groups(nodes: Nodes, mask: int) -> bool:
    """Return whether blocks on this set of nodes would mix with those on another set."""
    if mask.bit_count() == 1:
        return False  # as upstream, which has asked for the group before
    used = (nodes[node] for node in nodes_of(mask) if node in nodes)
    return any(memory.assignments and memory.cells != mask for memory in used)


def in_group(nodes: Nodes, mask: int) -> bool:
    """Return whether a mask is a single node that other blocks use together with more nodes."""
    return mask.bit_count() == 1 and any(
        nodes[node].cells != mask for node in nodes_of(mask) if node in nodes
    )


def _is_group(nodes: Nodes, mask: int) -> bool:
    return mask.bit_count() > 1 and all(
        node in nodes and nodes[node].cells == mask for node in nodes_of(mask)
    )


def _fits(
    nodes: Nodes,
    mask: int,
    wanted: Mapping[str, int],
    reusable: Mapping[tuple[int, str], int],
) -> bool:
    return all(
        _sum(nodes, mask, name, "allocatable") >= size
        and _sum(nodes, mask, name, "free") + reusable.get((mask, name), 0) >= size
        for name, size in wanted.items()
    )


def _sum(nodes: Nodes, mask: int, name: str, column: str) -> int:
    tables = (nodes[node].tables.get(name, _NOTHING) for node in nodes_of(mask) if node in nodes)
    return sum(getattr(table, column) for table in tables)


def _order(mask: int) -> tuple[int, ...]:
    return tuple(nodes_of(mask))


@dataclass(frozen=True, slots=True)
class _Search:
    """Sets of nodes that have enough together.

    Attributes:
        ids: the nodes, ascending.
        amounts: what each has.
        best: for each node the most that any n of it and the later nodes have, by n.
        wanted: what a set needs.
    """

    ids: Sequence[int]
    amounts: Sequence[Amounts]
    best: Sequence[Sequence[Amounts]]
    wanted: Amounts

    @classmethod
    def of(cls, nodes: Mapping[int, NodeMemory], wanted: Mapping[str, int], column: str) -> _Search:
        """Search by one column (free, allocatable) of the nodes' tables."""
        amounts = [
            tuple(getattr(memory.tables[name], column) for name in wanted)
            for memory in nodes.values()
        ]
        best = [_most(amounts[start:], len(wanted)) for start in range(len(amounts) + 1)]
        return cls(tuple(nodes), amounts, best, tuple(wanted.values()))

    def sets(self, size: int) -> Iterator[int]:
        """Yield the masks of `size` nodes, in lexicographic order."""
        return self._sets(0, size, 0, self.wanted)

    def _sets(self, start: int, size: int, mask: int, missing: Amounts) -> Iterator[int]:
        if not size:
            yield mask
            return
        for index in range(start, len(self.ids) - size + 1):
            rest = tuple(m - a for m, a in zip(missing, self.amounts[index], strict=True))
            if all(m <= b for m, b in zip(rest, self.best[index + 1][size - 1], strict=True)):
                yield from self._sets(index + 1, size - 1, mask | 1 << self.ids[index], rest)


def _most(amounts: Sequence[Amounts], kinds: int) -> Sequence[Amounts]:
    """Return the most that any n nodes have of each kind of memory, by n."""
    columns = (sorted((a[kind] for a in amounts), reverse=True) for kind in range(kinds))
    sums = [list(accumulate(column, initial=0)) for column in columns]
    return [tuple(column[n] for column in sums) for n in range(len(amounts) + 1)]
