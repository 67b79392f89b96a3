"""The test's own reading of the Go kubelet's checkpoints, against that kubelet's test data."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from tests.harness.go_checkpoints import (
    CPU_FILE,
    DEVICE_FILE,
    MEMORY_FILE,
    go_checksum,
    memory_tables,
    read_checkpoint,
    write_checkpoint,
)

_TWO = {"pod": {"container1": "4-6", "container2": "1-3"}}
_TABLE = {
    "total": 2048,
    "systemReserved": 512,
    "allocatable": 1536,
    "reserved": 512,
    "free": 1024,
}
_NODE = {"numberOfAssignments": 0, "memoryMap": {"memory": _TABLE}, "cells": []}
_BLOCK = {"numaAffinity": [0], "type": "memory", "size": 512}


# From cpumanager/state/state_checkpoint_test.go and its neighbour in memorymanager.
@pytest.mark.parametrize(
    ("file", "content", "number"),
    [
        (CPU_FILE, {"policyName": "none", "defaultCpuSet": "4-6", "entries": {}}, 354655845),
        (CPU_FILE, {"policyName": "none", "defaultCpuSet": "1-3", "entries": _TWO}, 3610638499),
        (CPU_FILE, {"policyName": "other", "defaultCpuSet": "1-3"}, 1394507217),
        (
            MEMORY_FILE,
            {
                "policyName": "static",
                "machineState": {"0": _NODE},
                "entries": {"pod": {"container1": [_BLOCK]}},
            },
            4215593881,
        ),
    ],
)
def test_checksums_are_those_of_the_go_kubelet(
    file: str, content: dict[str, Any], number: int
) -> None:
    assert go_checksum(file, content) == number


def test_a_checkpoint_is_read_as_it_was_written(tmp_path: Path) -> None:
    entry = {
        "PodUID": "uid",
        "ContainerName": "main",
        "ResourceName": "example.org/node",
        "DeviceIDs": {"-1": ["b", "a"], "0": ["c"]},
        "AllocResp": base64.b64encode(b"\x0a\x01").decode(),
    }
    content = {"PodDeviceEntries": [entry], "RegisteredDevices": {"example.org/node": ["a"]}}
    write_checkpoint(tmp_path, DEVICE_FILE, content)
    assert read_checkpoint(tmp_path, DEVICE_FILE) == content
    written = json.loads((tmp_path / DEVICE_FILE).read_text())
    written["Data"]["PodDeviceEntries"][0]["AllocResp"] = "AAAA"
    (tmp_path / DEVICE_FILE).write_text(json.dumps(written))
    with pytest.raises(ValueError, match="checksum"):
        read_checkpoint(tmp_path, DEVICE_FILE)


def test_the_tables_of_this_machine_add_up() -> None:
    for node in memory_tables({0: 1 << 20}, {0: 1 << 20}).values():
        for table in node["memoryMap"].values():
            assert table["free"] + table["reserved"] == table["allocatable"]
            assert table["allocatable"] + table["systemReserved"] == table["total"]
