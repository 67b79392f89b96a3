"""The checkpoint's JSON, and how Go's deep printer writes the value behind it.

The printer's text is what the checksum is of, so types and fields have the names of the source:
pkg/kubelet/cm/memorymanager/state. A Go nil (JSON null, or a field that is missing) is printed
differently from an empty list.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from kubelet_trio.managers.checksum import (
    GoValue,
    checksum,
    go_map,
    go_pointer,
    go_slice,
    go_struct,
    go_value,
)

_NAME = "state.MemoryManagerCheckpoint"


class TableJson(msgspec.Struct):
    total: int = 0
    systemReserved: int = 0  # noqa: N815  # as in the file, also below
    allocatable: int = 0
    reserved: int = 0
    free: int = 0


class NodeJson(msgspec.Struct):
    numberOfAssignments: int = 0  # noqa: N815
    memoryMap: dict[str, TableJson | None] | None = None  # noqa: N815
    cells: list[int] | None = None


class BlockJson(msgspec.Struct):
    numaAffinity: list[int] | None = None  # noqa: N815
    type: str = ""
    size: int = 0


class PodEntryJson(msgspec.Struct, omit_defaults=True):
    memoryBlocks: list[BlockJson] | None = None  # noqa: N815


NodesJson = dict[int, NodeJson | None]
EntriesJson = dict[str, dict[str, list[BlockJson] | None] | None]


class FileJson(msgspec.Struct):
    """The file; a field that is missing has the value of an empty checkpoint."""

    policyName: str = ""  # noqa: N815
    machineState: NodesJson | None = msgspec.field(default_factory=dict)  # noqa: N815
    entries: EntriesJson | None = msgspec.field(default_factory=dict)
    podEntries: dict[str, PodEntryJson] | None = msgspec.field(default_factory=dict)  # noqa: N815
    checksum: int = 0


def file_checksum(policy: str, nodes: NodesJson | None, entries: EntriesJson | None) -> int:
    """Return the checksum of a file, as all versions of the Go kubelet take it."""
    return checksum(_printed(FileJson(policy, nodes, entries), _NAME))


def known_checksums(file: FileJson) -> Iterator[int]:
    """Yield the checksums that Go kubelets may have written, the usual one first."""
    yield file_checksum(file.policyName, file.machineState, file.entries)
    yield checksum(_printed(file, _NAME, with_pods=True))  # with PodLevelResourceManagers
    yield checksum(_printed(file, f"{_NAME}V1"))


def _printed(file: FileJson, name: str, *, with_pods: bool = False) -> GoValue:
    nodes = file.machineState
    fields = {
        "PolicyName": go_value("string", file.policyName),
        "MachineState": go_map(
            "state.NUMANodeMap",
            None if nodes is None else {node: _print_node(m) for node, m in nodes.items()},
        ),
        "Entries": go_map(
            "state.ContainerMemoryAssignments",
            None
            if file.entries is None
            else {uid: _print_containers(held) for uid, held in file.entries.items()},
        ),
    }
    if with_pods:
        pods = file.podEntries
        fields["PodEntries"] = go_map(
            "state.PodMemoryAssignments",
            None
            if pods is None
            else {
                uid: go_struct("state.PodEntry", {"MemoryBlocks": _print_blocks(e.memoryBlocks)})
                for uid, e in pods.items()
            },
        )
    fields["Checksum"] = go_value("checksum.Checksum", 0)
    return go_pointer(go_struct(name, fields))


def _print_node(node: NodeJson | None) -> GoValue:
    if node is None:
        return go_map("*state.NUMANodeState", None)  # a nil pointer
    tables = node.memoryMap
    fields = {
        "NumberOfAssignments": go_value("int", node.numberOfAssignments),
        "MemoryMap": go_map(
            "map[v1.ResourceName]*state.MemoryTable",
            None if tables is None else {name: _print_table(t) for name, t in tables.items()},
        ),
        "Cells": _print_ints(node.cells),
    }
    return go_pointer(go_struct("state.NUMANodeState", fields))


def _print_table(table: TableJson | None) -> GoValue:
    if table is None:
        return go_map("*state.MemoryTable", None)
    fields = {
        "TotalMemSize": go_value("uint64", table.total),
        "SystemReserved": go_value("uint64", table.systemReserved),
        "Allocatable": go_value("uint64", table.allocatable),
        "Reserved": go_value("uint64", table.reserved),
        "Free": go_value("uint64", table.free),
    }
    return go_pointer(go_struct("state.MemoryTable", fields))


def _print_containers(held: Mapping[str, list[BlockJson] | None] | None) -> GoValue:
    return go_map(
        "map[string][]state.Block",
        None if held is None else {name: _print_blocks(blocks) for name, blocks in held.items()},
    )


def _print_blocks(blocks: Sequence[BlockJson] | None) -> GoValue:
    return go_slice("[]state.Block", None if blocks is None else map(_print_block, blocks))


def _print_block(block: BlockJson) -> GoValue:
    fields = {
        "NUMAAffinity": _print_ints(block.numaAffinity),
        "Type": go_value("v1.ResourceName", block.type),
        "Size": go_value("uint64", block.size),
    }
    return go_struct("state.Block", fields)


def _print_ints(numbers: Sequence[int] | None) -> GoValue:
    return go_slice("[]int", None if numbers is None else (go_value("int", n) for n in numbers))
