"""Where devices could be taken from, as hints for the topology manager: pure.

Source: generateDeviceTopologyHints of pkg/kubelet/cm/devicemanager/topology_hints.go.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from itertools import combinations

from kubelet_trio.managers.devices.types import Listed
from kubelet_trio.managers.types import Hint, nodes_of


def device_hints(
    listed: Listed,
    machine: int,
    available: Collection[str],
    reusable: Collection[str],
    count: int,
) -> tuple[Hint, ...]:
    """Return the sets of NUMA nodes that can give a number of devices, narrow sets first.

    Args:
        listed: all devices of the resource. The narrowest sets of nodes that have enough of them,
            free or not, are preferred.
        machine: the mask of the machine's nodes; numbers that a plugin makes up do not count.
        available: the devices that may be taken.
        reusable: those that must be taken, of the pod's init containers.
        count: how many are asked for.
    """
    every, free = _of(machine, listed.masks), _of(machine, listed.count_masks(available))
    near = 0
    for mask in every:
        near |= mask
    # Nodes without devices add nothing but combinations (upstream: GB200 with 36 nodes).
    nodes = tuple(nodes_of(near or machine))
    # A device that names no node fits everywhere, and counts for no node.
    bound = [listed.devices[name].mask for name in reusable if listed.devices[name].nodes]
    narrowest, found = len(nodes), []
    for mask in _subsets(nodes):
        if mask.bit_count() < narrowest and _count(every, mask) >= count:
            narrowest = mask.bit_count()
        if len(bound) + _count(free, mask) >= count and all(mask & own for own in bound):
            found.append(mask)
    return tuple(Hint(mask, preferred=mask.bit_count() == narrowest) for mask in found)


def _of(machine: int, masks: Mapping[int, int]) -> Mapping[int, int]:
    """Count by real nodes only: of others a plugin may make up one set for each device."""
    found: Counter[int] = Counter()
    for mask, number in masks.items():
        found[mask & machine] += number
    return found


def _subsets(nodes: tuple[int, ...]) -> Iterator[int]:
    masks = [1 << node for node in nodes]
    for width in range(1, len(nodes) + 1):
        yield from map(sum, combinations(masks, width))


def _count(masks: Mapping[int, int], mask: int) -> int:
    return sum([number for own, number in masks.items() if own & mask])
