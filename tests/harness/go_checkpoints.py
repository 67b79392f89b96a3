"""The Go kubelet's checkpoints of its managers: written and verified as that kubelet does.

Written from the format's description and without the project's own codecs, as their peer. The
checksum is FNV-1a of what Go's deep printer (spew with `%#v`) says of the value in memory, so each
checkpoint has its Go types here. Sources: pkg/kubelet/cm and pkg/kubelet/checkpointmanager.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

Json = dict[str, Any]
CPU_FILE = "cpu_manager_state"
MEMORY_FILE = "memory_manager_state"
DEVICE_FILE = "device-plugins/kubelet_internal_checkpoint"
_NODES = Path("/sys/devices/system/node")


class _Type(Protocol):
    """A Go type: its name, and how its values are printed without that."""

    @property
    def name(self) -> str: ...

    def show(self, value: Any) -> str:
        """Print a value that JSON gave."""
        ...

    def show_bare(self, value: Any) -> str:
        """Print it where Go writes no type before it: as an element of a map or a slice."""
        ...


@dataclass(frozen=True)
class _Plain:
    name: str

    def show(self, value: Any) -> str:
        return str(value)

    show_bare = show


@dataclass(frozen=True)
class _Bytes:
    """[]byte, in JSON as base64."""

    name: str = "[]uint8"

    def show(self, value: Any) -> str:
        return "<nil>" if value is None else f"[{' '.join(map(str, base64.b64decode(value)))}]"

    show_bare = show


@dataclass(frozen=True)
class _Slice:
    name: str
    of: _Type

    def show(self, value: Any) -> str:
        return "<nil>" if value is None else f"[{' '.join(map(self.of.show_bare, value))}]"

    show_bare = show


@dataclass(frozen=True)
class _Map:
    name: str
    of: _Type
    has_numbers: bool = False  # as keys

    def show(self, value: Any) -> str:
        if value is None:
            return "<nil>"
        keys = sorted(value, key=int) if self.has_numbers else sorted(value, key=str.encode)
        return f"map[{' '.join(f'{key}:{self.of.show_bare(value[key])}' for key in keys)}]"

    show_bare = show


@dataclass(frozen=True)
class _Struct:
    """Fields by their names in Go: the name in JSON, the type, what a missing one is."""

    name: str
    fields: Mapping[str, tuple[str, _Type, Any]]

    def show(self, value: Any) -> str:
        shown = (
            f"{go}:({kind.name}){kind.show(value.get(key, missing))}"
            for go, (key, kind, missing) in self.fields.items()
        )
        return f"{{{' '.join(shown)}}}"

    show_bare = show


@dataclass(frozen=True)
class _Pointer:
    to: _Type

    @property
    def name(self) -> str:
        return f"*{self.to.name}"

    def show(self, value: Any) -> str:
        return self.to.show(value)

    def show_bare(self, value: Any) -> str:
        return f"<*>{self.to.show(value)}"


_STRING, _INT, _UINT64 = _Plain("string"), _Plain("int"), _Plain("uint64")
_RESOURCE = _Plain("v1.ResourceName")
_STRINGS = _Slice("[]string", _STRING)
_CHECKSUM = ("", _Plain("checksum.Checksum"), 0)  # 0 while the checksum is made

_BLOCK = _Struct(
    "state.Block",
    {
        "NUMAAffinity": ("numaAffinity", _Slice("[]int", _INT), None),
        "Type": ("type", _RESOURCE, ""),
        "Size": ("size", _UINT64, 0),
    },
)
_TABLE = _Struct(
    "state.MemoryTable",
    {
        "TotalMemSize": ("total", _UINT64, 0),
        "SystemReserved": ("systemReserved", _UINT64, 0),
        "Allocatable": ("allocatable", _UINT64, 0),
        "Reserved": ("reserved", _UINT64, 0),
        "Free": ("free", _UINT64, 0),
    },
)
_NODE = _Struct(
    "state.NUMANodeState",
    {
        "NumberOfAssignments": ("numberOfAssignments", _INT, 0),
        "MemoryMap": (
            "memoryMap",
            _Map("map[v1.ResourceName]*state.MemoryTable", _Pointer(_TABLE)),
            None,
        ),
        "Cells": ("cells", _Slice("[]int", _INT), None),
    },
)
_ENTRY = _Struct(
    "checkpoint.PodDevicesEntry",
    {
        "PodUID": ("PodUID", _STRING, ""),
        "ContainerName": ("ContainerName", _STRING, ""),
        "ResourceName": ("ResourceName", _STRING, ""),
        "DeviceIDs": (
            "DeviceIDs",
            _Map("checkpoint.DevicesPerNUMA", _STRINGS, has_numbers=True),
            None,
        ),
        "AllocResp": ("AllocResp", _Bytes(), None),
    },
)
# What the checksum is made of, by the file.
_TYPES: dict[str, _Type] = {
    CPU_FILE: _Pointer(
        _Struct(
            "state.CPUManagerCheckpoint",
            {
                "PolicyName": ("policyName", _STRING, ""),
                "DefaultCPUSet": ("defaultCpuSet", _STRING, ""),
                "Entries": (
                    "entries",
                    _Map(
                        "map[string]map[string]string", _Map("map[string]string", _Plain("string"))
                    ),
                    {},
                ),
                "Checksum": _CHECKSUM,
            },
        )
    ),
    MEMORY_FILE: _Pointer(
        _Struct(
            "state.MemoryManagerCheckpoint",
            {
                "PolicyName": ("policyName", _STRING, ""),
                "MachineState": (
                    "machineState",
                    _Map("state.NUMANodeMap", _Pointer(_NODE), has_numbers=True),
                    {},
                ),
                "Entries": (
                    "entries",
                    _Map(
                        "state.ContainerMemoryAssignments",
                        _Map("map[string][]state.Block", _Slice("[]state.Block", _BLOCK)),
                    ),
                    {},
                ),
                "Checksum": _CHECKSUM,
            },
        )
    ),
    DEVICE_FILE: _Struct(
        "checkpoint.checkpointData",
        {
            "PodDeviceEntries": (
                "PodDeviceEntries",
                _Slice("[]checkpoint.PodDevicesEntry", _ENTRY),
                [],
            ),
            "RegisteredDevices": (
                "RegisteredDevices",
                _Map("map[string][]string", _STRINGS),
                {},
            ),
        },
    ),
}


def go_checksum(file: str, content: Json) -> int:
    """Return the checksum of a file's content: of its `Data` where it has such."""
    kind = _TYPES[file]
    value = 0x811C9DC5
    for byte in f"({kind.name}){kind.show(content)}".encode():
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value


def write_checkpoint(root: Path, file: str, content: Json) -> None:
    """Write a checkpoint below a root directory as the Go kubelet does."""
    number = go_checksum(file, content)
    whole = (
        {"Data": content, "Checksum": number}
        if file == DEVICE_FILE
        else {**content, "checksum": number}
    )
    path = root / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(whole, separators=(",", ":")))
    path.chmod(0o600)


def read_checkpoint(root: Path, file: str) -> Json:
    """Read a checkpoint. Raises ValueError where the Go kubelet would refuse it."""
    whole: Json = json.loads((root / file).read_text())
    key = "Checksum" if file == DEVICE_FILE else "checksum"
    content: Json = whole["Data"] if file == DEVICE_FILE else whole
    if (made := go_checksum(file, content)) != whole[key]:
        raise ValueError(f"{file}: the checksum is {whole[key]}, and not {made}: {whole}")
    return content


def memory_tables(reserved: Mapping[int, int], held: Mapping[int, int]) -> Json:
    """Return `machineState` of this machine.

    Args:
        reserved: bytes that are kept for the system, by NUMA node.
        held: bytes that one container each holds, by NUMA node.
    """
    tables: Json = {}
    for directory in sorted(_NODES.glob("node[0-9]*")):
        number = int(directory.name.removeprefix("node"))
        first = (directory / "meminfo").read_text().splitlines()[0]
        total = int(first.split()[3]) * 1024
        by_type = {"memory": _table(total, reserved.get(number, 0), held.get(number, 0))}
        for pages in sorted((directory / "hugepages").glob("hugepages-*")):
            size = int(pages.name.removeprefix("hugepages-").removesuffix("kB")) * 1024
            count = int((pages / "nr_hugepages").read_text())
            by_type[f"hugepages-{_quantity(size)}"] = _table(count * size, 0, 0)
        tables[str(number)] = {
            "numberOfAssignments": 1 if number in held else 0,
            "memoryMap": by_type,
            "cells": [number],
        }
    return tables


def _table(total: int, reserved: int, held: int) -> Json:
    return {
        "total": total,
        "systemReserved": reserved,
        "allocatable": total - reserved,
        "reserved": held,
        "free": total - reserved - held,
    }


def _quantity(size: int) -> str:
    unit, letter = (1 << 30, "Gi") if size % (1 << 30) == 0 else (1 << 20, "Mi")
    return f"{size // unit}{letter}"
