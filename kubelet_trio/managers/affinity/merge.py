"""Merges the hints of all resources to one set of NUMA nodes.

A choice takes one hint of each resource. It stands for the nodes that all its hints share, and is
preferred if its hints are preferred and name the same nodes. Upstream looks at every choice
(policy.go in pkg/kubelet/cm/topologymanager): on a machine with eight nodes a resource may have
255 hints, and three resources 16 million choices. As its comparison is a total order, the result
needs only the sets of nodes that some preferred choice, or some choice at all, stands for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from kubelet_trio.managers.types import ANYWHERE, Hint, Hints, Machine, nodes_of

# No set of nodes can serve the resource.
NOWHERE = Hint(None, preferred=False)


@dataclass(frozen=True, slots=True)
class NodeSets:
    """The order of sets of NUMA nodes: which of them fits better.

    Attributes:
        all: the mask of the machine's nodes.
        distances: node to node to distance, where near nodes are preferred; None: only the
            number of nodes counts.
    """

    all: int
    distances: dict[int, dict[int, int]] | None = None

    @classmethod
    def of(cls, machine: Machine, *, prefer_closest: bool) -> NodeSets:
        """Return the order for a machine.

        Raises ValueError if near nodes are to be preferred and the distances are not known.
        """
        if not prefer_closest:
            return cls(machine.all_nodes)
        ids = [node.id for node in machine.nodes]
        for node in machine.nodes:
            if len(node.distances) != len(ids):
                raise ValueError(
                    f"the kernel gives no distances from NUMA node {node.id} to the {len(ids)} "
                    f"nodes of this machine (/sys/devices/system/node/node{node.id}/distance); "
                    "topologyManagerPolicyOptions: remove prefer-closest-numa-nodes"
                )
        distances = {node.id: dict(zip(ids, node.distances, strict=True)) for node in machine.nodes}
        return cls(machine.all_nodes, distances)

    def best(self, masks: Iterable[int]) -> int:
        """Return the best mask: few nodes, then near ones, then low numbers."""
        return min(masks, key=lambda mask: (mask.bit_count(), self._spread(mask), mask))

    def _spread(self, mask: int) -> int:
        # Upstream compares averages, of masks with as many nodes: sums are as good, and exact.
        if self.distances is None:
            return 0
        nodes = list(nodes_of(mask))
        return sum(self.distances[one][other] for one in nodes for other in nodes)


def offers(hints: Sequence[Hints]) -> list[tuple[Hint, ...]]:
    """Return the hints of each resource of all managers."""
    found: list[tuple[Hint, ...]] = []
    for of_manager in hints:
        if not of_manager:
            found.append((ANYWHERE,))
        found += [
            (ANYWHERE,) if of_resource is None else of_resource or (NOWHERE,)
            for of_resource in of_manager.values()
        ]
    return found


def merge(resources: Sequence[Collection[Hint]], sets: NodeSets) -> Hint:
    """Return the best hint that takes one of each resource's hints.

    If no choice shares a node, this is all nodes, not preferred.
    """
    alike = {sets.all if mask is None else mask & sets.all for mask in _alike(resources)}
    if fitting := alike - {0}:
        return Hint(sets.best(fitting), preferred=True)
    shared = _shared(resources, sets.all)
    if not shared:
        return Hint(sets.all, preferred=False)
    # As many nodes as the most demanding resource needs, or the next smaller number of them.
    limit = max((_fewest(hints) for hints in resources), default=0)
    counts = {mask.bit_count() for mask in shared}
    count = max((n for n in counts if n <= limit), default=min(counts))
    best = sets.best(mask for mask in shared if mask.bit_count() == count)
    return Hint(best, preferred=False)


def _fewest(hints: Collection[Hint]) -> int:
    """Return the number of nodes of the narrowest hint; 0 if all accept any node."""
    return min((h.nodes.bit_count() for h in hints if h.nodes is not None), default=0)


def _alike(resources: Sequence[Collection[Hint]]) -> set[int | None]:
    """Return the masks of the preferred choices; None stands for any node."""
    found: set[int | None] = {None}
    for hints in resources:
        masks = {hint.nodes for hint in hints if hint.preferred}
        either = (found if None in masks else set()) | (masks if None in found else set())
        found = (found & masks) | either
    return found


def _shared(resources: Sequence[Collection[Hint]], nodes: int) -> set[int]:
    """Return the masks, except 0, of all choices."""
    found = {nodes}
    for hints in resources:
        masks = {nodes if hint.nodes is None else hint.nodes & nodes for hint in hints}
        found = _meets(found, masks, nodes)
    return found


def _meets(some: set[int], others: set[int], nodes: int) -> set[int]:
    """Return the intersections, except 0, of one mask of each set; all within `nodes`."""
    count = nodes.bit_count()
    if len(some) * len(others) <= count << (count + 1):
        return {one & other for one in some for other in others} - {0}
    # With n nodes there are 2^n masks and up to 4^n pairs, but the number of pairs that meet in
    # a mask follows from the numbers of masks above it, in n * 2^n steps: pairs above it are
    # products, and taking away those that meet in a larger mask leaves its own (Moebius).
    bits = [1 << node for node in nodes_of(nodes)]
    masks = [0]
    for bit in bits:
        masks += [mask | bit for mask in masks]
    first, second = _above(some, masks, bits), _above(others, masks, bits)
    pairs = {mask: first[mask] * second[mask] for mask in masks}
    for bit in bits:
        for mask in masks:
            if not mask & bit:
                pairs[mask] -= pairs[mask | bit]
    return {mask for mask in masks if mask and pairs[mask]}


def _above(family: set[int], masks: list[int], bits: list[int]) -> dict[int, int]:
    """Return for each mask how many of a family contain it."""
    counts = {mask: int(mask in family) for mask in masks}
    for bit in bits:
        for mask in masks:
            if not mask & bit:
                counts[mask] += counts[mask | bit]
    return counts
