"""Takes over the state of an earlier run, or says why that is impossible and what to do.

Source: validateState of policy_static.go. Sums are compared over a group of nodes, since what was
given back may have been another container's part of the group.
"""

from __future__ import annotations

from collections.abc import Iterator

from kubelet_trio.managers.memory.checkpoint import CheckpointError, decode_checkpoint
from kubelet_trio.managers.memory.ledger import reserve
from kubelet_trio.managers.memory.manager import MemoryManager
from kubelet_trio.managers.memory.state import MemoryState, MemoryTable, Nodes
from kubelet_trio.managers.types import nodes_of

_NOTHING = MemoryTable(0, 0, 0, 0, 0)


class MemoryStateError(ValueError):
    """A checkpoint that the manager cannot go on from; the message says what to do."""


def restore_state(manager: MemoryManager, data: bytes | None, path: str) -> MemoryState:
    """Return the state to start with: that of the checkpoint, or an empty one if there is none.

    Args:
        manager: the rules for this machine.
        data: the file's content; None if there is no file.
        path: the file, for messages.

    Raises `MemoryStateError`; `ReservedMemoryError` if the reservations exceed the machine.
    """
    empty = manager.empty()
    if data is None:
        return empty
    try:
        state = decode_checkpoint(data)
        _check(state, empty)
    except CheckpointError as exc:
        raise _refused(path, str(exc)) from exc
    return state if state.nodes else empty


def _refused(path: str, problem: str) -> MemoryStateError:
    return MemoryStateError(
        f"could not restore state from checkpoint: {problem}, please drain this node and delete "
        f'the memory manager checkpoint file "{path}" before restarting Kubelet'
    )


def _check(state: MemoryState, empty: MemoryState) -> None:
    """Raise `CheckpointError` unless a state is of this machine and its blocks add up."""
    if not state.nodes:
        if state.blocks:
            raise CheckpointError(
                "[memorymanager] machine state can not be empty when it has memory assignments"
            )
        return
    difference = next(_differences(state.nodes, _expected(state, empty)), None)
    if difference is not None:
        raise CheckpointError(
            "[memorymanager] the expected machine state is different from the real one: "
            f"{difference}. The machine's memory or huge pages, or reservedMemory, changed, or the "
            "file was edited"
        )


def _expected(state: MemoryState, empty: MemoryState) -> Nodes:
    """Return the nodes of this machine with all blocks of a state. Raises `CheckpointError`."""
    nodes = empty.nodes
    for uid, held in state.blocks.items():
        for container, blocks in held.items():
            where = f"[memorymanager] (pod: {uid}, container: {container}) the memory assignment"
            for block in blocks:
                for node in nodes_of(block.nodes):
                    if node not in nodes:
                        raise CheckpointError(f"{where} uses the NUMA that does not exist: {node}")
                    if block.type not in nodes[node].tables:
                        raise CheckpointError(
                            f"{where} uses memory resource that does not exist: {block.type}"
                        )
                nodes = reserve(nodes, block, block.size)
    return nodes


def _differences(there: Nodes, expected: Nodes) -> Iterator[str]:
    """Yield in which way the nodes of a checkpoint are not what they should be."""
    if there.keys() != expected.keys():
        yield f"NUMA nodes {_ids(there)} in the checkpoint, {_ids(expected)} on the machine"
        return
    for node, now in expected.items():
        was, where = there[node], f"NUMA node {node}"
        if was.assignments != now.assignments:
            yield f"{where}: {was.assignments} assignments, {now.assignments} by its entries"
        if was.cells != now.cells:
            yield f"{where}: group {_nodes(was.cells)}, {_nodes(now.cells)} by its entries"
        if was.tables.keys() != now.tables.keys():
            yield (
                f"{where}: {', '.join(sorted(was.tables))} in the checkpoint, "
                f"{', '.join(sorted(now.tables))} on the machine"
            )
            continue
        for name in now.tables:
            yield from _table_differences(node, name, there, expected)


def _table_differences(node: int, name: str, there: Nodes, expected: Nodes) -> Iterator[str]:
    was, now = there[node].tables[name], expected[node].tables[name]
    where = f"NUMA node {node}: {name}"
    columns = (
        ("total", was.total, now.total),
        ("systemReserved", was.system_reserved, now.system_reserved),
        ("allocatable", was.allocatable, now.allocatable),
    )
    for column, before, after in columns:
        if before != after:
            yield f"{where}: {column} {before} in the checkpoint, {after} on the machine"
    cells = there[node].cells
    for column in ("free", "reserved"):
        before, after = (_group_sum(nodes, cells, name, column) for nodes in (there, expected))
        if before != after:
            yield f"{where}: {column} {before} in the checkpoint, {after} by its entries"


def _group_sum(nodes: Nodes, cells: int, name: str, column: str) -> int:
    tables = (nodes[node].tables.get(name, _NOTHING) for node in nodes_of(cells) if node in nodes)
    return sum(getattr(table, column) for table in tables)


def _ids(nodes: Nodes) -> str:
    return ", ".join(map(str, sorted(nodes))) or "none"


def _nodes(mask: int) -> str:
    return ", ".join(map(str, nodes_of(mask))) or "none"
