"""The checkpoint `memory_manager_state`, byte for byte as the Go kubelet writes it.

Source: pkg/kubelet/cm/memorymanager/state/checkpoint.go. Version 2 (`podEntries`, of the alpha gate
PodLevelResourceManagers) is read as long as it has no entries of pods.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from kubelet_trio.managers.checksum import go_json
from kubelet_trio.managers.memory.file import (
    BlockJson,
    EntriesJson,
    FileJson,
    NodeJson,
    NodesJson,
    TableJson,
    file_checksum,
    known_checksums,
)
from kubelet_trio.managers.memory.state import (
    Block,
    MemoryState,
    MemoryTable,
    NodeMemory,
)
from kubelet_trio.managers.types import mask_of, nodes_of
from kubelet_trio.model import JSON_ERRORS, PodUid

FILE_NAME = "memory_manager_state"
STATIC = "Static"

_MOST_NODES = 1024  # MAX_NUMNODES of Linux; a mask has a bit for each
_UINT64 = 2**64


class CheckpointError(ValueError):
    """A checkpoint that is damaged, or of another policy; the message does not name the file."""


def encode_checkpoint(state: MemoryState | None, policy: str = STATIC) -> bytes:
    """Return the checkpoint of a state; None with another policy, which holds no state."""
    nodes: NodesJson = {}
    entries: EntriesJson = {}
    if state is not None:
        nodes = {node: _to_node(memory) for node, memory in state.nodes.items()}
        entries = {
            uid: {name: [_to_block(block) for block in blocks] for name, blocks in held.items()}
            for uid, held in state.blocks.items()
        }
    body: dict[str, object] = {
        "policyName": policy,
        "machineState": _sorted({str(node): memory for node, memory in nodes.items()}),
    }
    if entries:  # omitempty
        body["entries"] = _sorted({uid: _sorted(held or {}) for uid, held in entries.items()})
    body["checksum"] = file_checksum(policy, nodes, entries)
    return go_json(body)


def decode_checkpoint(data: bytes, policy: str = STATIC) -> MemoryState:
    """Return the state of a checkpoint, which may have no nodes yet. Raises `CheckpointError`.

    Nothing is compared with the machine: see `restore_state`.
    """
    try:
        file = msgspec.json.decode(data, type=FileJson)
    except JSON_ERRORS as exc:
        raise CheckpointError(str(exc)) from exc
    if file.checksum and file.checksum not in known_checksums(file):
        raise CheckpointError("checkpoint is corrupted")
    if file.policyName != policy:
        raise CheckpointError(
            f'[memorymanager] configured policy "{policy}" differs from state checkpoint policy '
            f'"{file.policyName}"'
        )
    if file.podEntries:
        uid = min(file.podEntries)
        raise CheckpointError(
            f"pod {uid} has memory of the pod's own (podEntries), which the feature gate "
            "PodLevelResourceManagers gives and this agent does not support"
        )
    nodes = {
        node: _from_node(node, memory)
        for node, memory in sorted((file.machineState or {}).items(), key=lambda item: item[0])
    }
    blocks = {
        PodUid(uid): {
            name: tuple(_from_block(f"entries[{uid}][{name}]", block) for block in given or ())
            for name, given in (held or {}).items()
        }
        for uid, held in (file.entries or {}).items()
    }
    return MemoryState(nodes, blocks)


def _to_node(memory: NodeMemory) -> NodeJson:
    tables: dict[str, TableJson | None] = {
        name: TableJson(t.total, t.system_reserved, t.allocatable, t.reserved, t.free)
        for name, t in sorted(memory.tables.items())
    }
    return NodeJson(memory.assignments, tables, list(nodes_of(memory.cells)))


def _to_block(block: Block) -> BlockJson:
    return BlockJson(list(nodes_of(block.nodes)), block.type, block.size)


def _from_node(node: int, memory: NodeJson | None) -> NodeMemory:
    where = f"machineState[{node}]"
    _check_nodes(where, [node])
    if memory is None:
        raise CheckpointError(f"{where}: expected an object, not null")
    tables = {
        name: _from_table(f"{where}.memoryMap[{name}]", table)
        for name, table in (memory.memoryMap or {}).items()
    }
    if not 0 <= memory.numberOfAssignments < 2**31:
        raise CheckpointError(f"{where}.numberOfAssignments: expected a number from 0 to 2^31-1")
    cells = memory.cells or []
    _check_nodes(f"{where}.cells", cells)
    return NodeMemory(tables, mask_of(cells), memory.numberOfAssignments)


def _from_table(where: str, table: TableJson | None) -> MemoryTable:
    if table is None:
        raise CheckpointError(f"{where}: expected an object, not null")
    values = msgspec.structs.astuple(table)
    if not all(0 <= value < _UINT64 for value in values):
        raise CheckpointError(f"{where}: expected numbers from 0 to 2^64-1")
    return MemoryTable(*values)


def _from_block(where: str, block: BlockJson) -> Block:
    nodes = block.numaAffinity or []
    _check_nodes(f"{where}: numaAffinity", nodes)
    if not 0 <= block.size < _UINT64:
        raise CheckpointError(f"{where}: size: expected a number from 0 to 2^64-1")
    return Block(mask_of(nodes), block.type, block.size)


def _check_nodes(where: str, nodes: Sequence[int]) -> None:
    for node in nodes:
        if not 0 <= node < _MOST_NODES:
            raise CheckpointError(f"{where}: expected NUMA nodes from 0 to {_MOST_NODES - 1}")


def _sorted(body: Mapping[str, object]) -> dict[str, object]:
    return dict(sorted(body.items()))
