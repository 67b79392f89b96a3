"""Books blocks on NUMA nodes and takes them off again, with upstream's arithmetic.

A block of several nodes is filled from the lowest one up. What is given back is taken from the
lowest node first as well, whoever's it was: only the sum over a group is exact.
"""

from __future__ import annotations

from dataclasses import replace

from kubelet_trio.managers.memory.state import Block, MemoryTable, NodeMemory, Nodes
from kubelet_trio.managers.types import nodes_of

_NOTHING = MemoryTable(0, 0, 0, 0, 0)


def reserve(nodes: Nodes, block: Block, size: int) -> Nodes:
    """Return the nodes with a block on them that takes `size` bytes of what is free.

    `size` is less than the block's own where it uses memory of init containers again. KeyError for
    a node that does not exist.
    """
    changed = dict(nodes)
    for node in nodes_of(block.nodes):
        memory = changed[node]
        table = memory.tables.get(block.type, _NOTHING)
        taken = min(size, table.free)
        size -= taken
        tables = _moved(memory, block.type, table, taken)
        changed[node] = NodeMemory(tables, block.nodes, memory.assignments + 1)
    return changed


def give_back(nodes: Nodes, block: Block) -> Nodes:
    """Return the nodes without a block. KeyError for a node that does not exist."""
    changed = dict(nodes)
    size = block.size
    for node in nodes_of(block.nodes):
        memory = changed[node]
        table = memory.tables.get(block.type, _NOTHING)
        given = min(size, table.reserved)
        size -= given
        tables = _moved(memory, block.type, table, -given)
        left = memory.assignments - 1
        # The last block on a node ends its group.
        changed[node] = NodeMemory(tables, memory.cells if left else 1 << node, left)
    return changed


def _moved(memory: NodeMemory, name: str, table: MemoryTable, size: int) -> dict[str, MemoryTable]:
    """Return a node's tables with `size` bytes of one moved from free to reserved."""
    tables = dict(memory.tables)
    if size:
        tables[name] = replace(table, free=table.free - size, reserved=table.reserved + size)
    return tables
