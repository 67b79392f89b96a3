"""The memory manager: which NUMA nodes the memory and huge pages of Guaranteed pods are on.

Pure decisions; who keeps the state, writes the checkpoint and counts is `managers.node`.
"""

from kubelet_trio.managers.memory.checkpoint import (
    FILE_NAME,
    CheckpointError,
    decode_checkpoint,
    encode_checkpoint,
)
from kubelet_trio.managers.memory.manager import MemoryManager, release_container
from kubelet_trio.managers.memory.requests import is_pinned
from kubelet_trio.managers.memory.reserved import (
    Reserved,
    ReservedMemoryError,
    parse_reserved_memory,
)
from kubelet_trio.managers.memory.restore import (
    MemoryStateError,
    restore_state,
)
from kubelet_trio.managers.memory.state import (
    Block,
    MemoryState,
    MemoryTable,
    NodeMemory,
    allocatable_blocks,
    container_blocks,
    memory_nodes,
)

# What `parse_reserved_memory`, `MemoryManager.empty` and `restore_state` raise.
MEMORY_ERRORS = (ReservedMemoryError, MemoryStateError)

__all__ = [
    "FILE_NAME",
    "MEMORY_ERRORS",
    "Block",
    "CheckpointError",
    "MemoryManager",
    "MemoryState",
    "MemoryStateError",
    "MemoryTable",
    "NodeMemory",
    "Reserved",
    "ReservedMemoryError",
    "allocatable_blocks",
    "container_blocks",
    "decode_checkpoint",
    "encode_checkpoint",
    "is_pinned",
    "memory_nodes",
    "parse_reserved_memory",
    "release_container",
    "restore_state",
]
