"""What the memory manager knows: each NUMA node's memory, and the blocks of each container.

A block is one kind of memory of one container on a set of nodes. With more than one node these
form a group: every block on any of them is on exactly the same nodes (KEP-1769, "single- vs
cross-NUMA allocation"). The numbers are upstream's, in bytes, since the checkpoint has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kubelet_trio.model import PodUid

MEMORY = "memory"
HUGE_PAGES = "hugepages-"


@dataclass(frozen=True, slots=True)
class Block:
    """Memory of one container.

    Attributes:
        nodes: the mask of NUMA nodes.
        type: `memory` or `hugepages-<size>`.
        size: bytes; 0 of an init container whose memory the next containers use again.
    """

    nodes: int
    type: str
    size: int


@dataclass(frozen=True, slots=True)
class MemoryTable:
    """Bytes of one kind of memory on one NUMA node.

    Attributes:
        total: what the node has. That of `memory` includes its huge pages.
        system_reserved: what reservedMemory keeps from containers.
        allocatable: what containers can get; of `memory` without the huge pages.
        reserved: what containers have.
        free: what is left of `allocatable`.
    """

    total: int
    system_reserved: int
    allocatable: int
    reserved: int
    free: int


@dataclass(frozen=True, slots=True)
class NodeMemory:
    """The memory of one NUMA node.

    Attributes:
        tables: by kind of memory (`memory`, `hugepages-<size>`).
        cells: the mask of the nodes that it is in one group with; only itself if in none.
        assignments: how many blocks are on this node, also those of 0 bytes.
    """

    tables: Mapping[str, MemoryTable]
    cells: int
    assignments: int = 0


Nodes = Mapping[int, NodeMemory]
Blocks = tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Reusable:
    """What the init containers of the pod that is being admitted leave to its next containers.

    Attributes:
        uid: the pod.
        sizes: bytes by mask of nodes and kind of memory.
    """

    uid: PodUid
    sizes: Mapping[tuple[int, str], int]


@dataclass(frozen=True, slots=True)
class MemoryState:
    """All memory of a machine, and who has it.

    Attributes:
        nodes: by ID, ascending.
        blocks: pod, container, its blocks. A container that is missing uses any memory.
        reusable: not in the checkpoint: it matters only while one pod is being admitted.
    """

    nodes: Nodes
    blocks: Mapping[PodUid, Mapping[str, Blocks]] = field(default_factory=dict)
    reusable: Reusable | None = field(default=None, compare=False)


def container_blocks(state: MemoryState, uid: PodUid, container: str) -> Blocks | None:
    """Return the blocks of a container; None if it has none."""
    return state.blocks.get(uid, {}).get(container)


def memory_nodes(state: MemoryState, uid: PodUid, container: str) -> int | None:
    """Return the mask of nodes that a container's memory must be on (cpuset.mems); None: any."""
    mask = 0
    for block in container_blocks(state, uid, container) or ():
        mask |= block.nodes
    return mask or None


def allocatable_blocks(state: MemoryState) -> Blocks:
    """Return what containers can get, a block for each node and kind of memory it has."""
    return tuple(
        Block(1 << node, name, table.allocatable)
        for node, memory in state.nodes.items()
        for name, table in memory.tables.items()
        if table.allocatable
    )
