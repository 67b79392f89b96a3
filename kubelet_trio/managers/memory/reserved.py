"""What reservedMemory keeps for the system on each NUMA node, and what is left of a machine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kubelet_trio.managers.memory.state import (
    HUGE_PAGES,
    MEMORY,
    MemoryState,
    MemoryTable,
    NodeMemory,
)
from kubelet_trio.managers.types import Machine, NumaNode
from kubelet_trio.model import NANO, parse_quantity, quantity_like

Reserved = Mapping[int, Mapping[str, int]]  # NUMA node, kind of memory, bytes

_FIELD = "reservedMemory (--reserved-memory)"


class ReservedMemoryError(ValueError):
    """A reservedMemory that does not suit the machine or the node's other reservations."""


def parse_reserved_memory(
    machine: Machine,
    reservations: Iterable[tuple[int, Mapping[str, str]]],
    node_reserved: Mapping[str, int],
) -> Reserved:
    """Return reservedMemory in bytes, checked against the machine and the node's reservations.

    Args:
        machine: the machine; each reservation names one of its NUMA nodes.
        reservations: NUMA node, and quantity by resource (`memory: 1Gi`).
        node_reserved: bytes by resource of kubeReserved, systemReserved and evictionHard together.

    Raises `ReservedMemoryError`.
    """
    reserved: dict[int, dict[str, int]] = {node.id: {} for node in machine.nodes}
    for node, limits in reservations:
        if node not in reserved:
            raise ReservedMemoryError(
                f"{_FIELD}: the reserved memory configuration references a NUMA node {node} that "
                f"does not exist on this machine, which has {_list(reserved)}"
            )
        for name, quantity in limits.items():
            if name in reserved[node]:
                raise ReservedMemoryError(
                    f"{_FIELD}: the reserved memory has a duplicate value for NUMA node {node} and "
                    f'resource "{name}"'
                )
            reserved[node][name] = _bytes(node, name, quantity)
    _check_sums(reserved, node_reserved)
    for numa in machine.nodes:
        node_tables(numa, reserved[numa.id])  # raises for more than the node has
    # As NewPolicyStatic: without any, the kubelet's own memory could not be told from containers'.
    if not any(limits.get(MEMORY) for limits in reserved.values()):
        raise ReservedMemoryError(
            f"{_FIELD}: you should specify the system reserved memory: memoryManagerPolicy Static "
            "needs memory of at least one NUMA node, as much as kubeReserved, systemReserved and "
            "evictionHard have together"
        )
    return reserved


def empty_state(machine: Machine, reserved: Reserved) -> MemoryState:
    """Return the state of a machine without containers. Raises `ReservedMemoryError`."""
    return MemoryState(
        {
            node.id: NodeMemory(node_tables(node, reserved.get(node.id, {})), 1 << node.id)
            for node in machine.nodes
        }
    )


def node_tables(node: NumaNode, reserved: Mapping[str, int]) -> dict[str, MemoryTable]:
    """Return a NUMA node's memory and huge pages. Raises `ReservedMemoryError`."""
    huge = {huge_page_name(size): size * pages for size, pages in node.huge_pages.items()}
    tables = {
        name: _table(node, name, total, total, reserved) for name, total in sorted(huge.items())
    }
    usable = node.memory - sum(huge.values())
    tables[MEMORY] = _table(node, MEMORY, node.memory, usable, reserved)
    return tables


def huge_page_name(size: int) -> str:
    """Return the resource of huge pages of `size` bytes: `hugepages-2Mi`."""
    return HUGE_PAGES + _quantity(size)


def _table(
    node: NumaNode, name: str, total: int, usable: int, reserved: Mapping[str, int]
) -> MemoryTable:
    kept = reserved.get(name, 0)
    # Upstream's unsigned numbers wrap around here, and the node has exabytes.
    if kept and kept > usable:
        raise ReservedMemoryError(
            f"{_FIELD}: NUMA node {node.id}: {_quantity(kept)} of {name} is more than the "
            f"{_quantity(max(usable, 0))} that the node has"
            + (" besides its huge pages" if name == MEMORY and usable != total else "")
        )
    allocatable = max(usable - kept, 0)
    return MemoryTable(total, kept, allocatable, 0, allocatable)


def _check_sums(reserved: Reserved, node_reserved: Mapping[str, int]) -> None:
    names = {name for limits in reserved.values() for name in limits}
    names |= {name for name in node_reserved if name == MEMORY or name.startswith(HUGE_PAGES)}
    for name in sorted(names):
        total = sum(limits.get(name, 0) for limits in reserved.values())
        wanted = node_reserved.get(name, 0)
        if total != wanted:
            raise ReservedMemoryError(
                f'{_FIELD}: the total amount "{_quantity(total)}" of type "{name}" is not equal to '
                f'the value "{_quantity(wanted)}" determined by Node Allocatable feature: '
                "kubeReserved, systemReserved and evictionHard together"
            )


def _bytes(node: int, name: str, quantity: str) -> int:
    where = f"{_FIELD}: NUMA node {node}: {name}"
    if name != MEMORY and not name.startswith(HUGE_PAGES):
        raise ReservedMemoryError(
            f"{where}: the limit type is not supported, only {MEMORY} and "
            f"{HUGE_PAGES}<HugePageSize>"
        )
    try:
        size, rest = divmod(parse_quantity(quantity), NANO)
    except ValueError as exc:
        raise ReservedMemoryError(f"{where}: {exc}") from exc
    if rest or not 0 < size < 2**63:
        raise ReservedMemoryError(f"{where}: {quantity}: expected a whole number of bytes from 1")
    return size


def _quantity(size: int) -> str:
    return quantity_like(size * NANO, "1Ki")


def _list(nodes: Iterable[int]) -> str:
    return ", ".join(map(str, nodes))
