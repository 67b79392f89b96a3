"""The checkpoint that either agent reads and writes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kubelet_trio.managers import Hint
from kubelet_trio.managers.memory import (
    CheckpointError,
    decode_checkpoint,
    encode_checkpoint,
)
from tests.managers.memory.shapes import GI, HUGE, block, manager, placed, uid, wanting
from tests.managers.pods import pod

# Values and checksums are from the source's own tests: the second has entries of pods.
_NODES = (
    '"policyName":"static","machineState":{"0":{"numberOfAssignments":0,"memoryMap":{"memory":'
    '{"total":2048,"systemReserved":512,"allocatable":1536,"reserved":512,"free":1024}},"cells":[]'
    '}},"entries":{"pod":{"container1":[{"numaAffinity":[0],"type":"memory","size":512}]}}'
)
VERSION_1 = f'{{{_NODES},"checksum":4215593881}}'
VERSION_2 = (
    f'{{{_NODES},"podEntries":{{"pod":{{"memoryBlocks":[{{"numaAffinity":[0],"type":"memory",'
    '"size":512}]}},"checksum":1278640530}'
)


def edited(**fields: Any) -> bytes:
    """Return a checkpoint with other fields, and without a checksum, which any agent accepts."""
    return json.dumps({**json.loads(VERSION_1), "checksum": 0, **fields}).encode()


def test_a_checkpoint_of_the_go_kubelet_is_read_and_written_byte_for_byte() -> None:
    state = decode_checkpoint(VERSION_1.encode(), "static")
    assert state.blocks == {"pod": {"container1": (block([0], 512),)}}
    assert encode_checkpoint(state, "static") == VERSION_1.encode()


def test_the_state_of_a_group_is_written_as_upstream_does() -> None:
    rules = manager(GI, GI, huge=1)
    wanted = pod(wanting("main", "1536Mi", "2Gi"), uid="b")
    state = placed(rules, rules.empty(), wanted, Hint(0b11, preferred=True))
    written = json.loads(encode_checkpoint(state))
    assert list(written) == ["policyName", "machineState", "entries", "checksum"]
    assert written["policyName"] == "Static"
    assert written["machineState"]["1"] == {
        "numberOfAssignments": 2,
        "memoryMap": {
            HUGE: {"total": GI, "systemReserved": 0, "allocatable": GI, "reserved": GI, "free": 0},
            "memory": {
                "total": GI + GI // 2 + GI,
                "systemReserved": GI // 2,
                "allocatable": GI,
                "reserved": GI // 2,
                "free": GI // 2,
            },
        },
        "cells": [0, 1],
    }
    assert written["entries"] == {
        "b": {
            "main": [
                {"numaAffinity": [0, 1], "type": HUGE, "size": 2 * GI},
                {"numaAffinity": [0, 1], "type": "memory", "size": GI + GI // 2},
            ]
        }
    }


def test_keys_are_in_gos_order_and_an_empty_map_of_entries_is_left_out() -> None:
    rules = manager(*[GI] * 11)
    written = json.loads(encode_checkpoint(rules.empty()))
    assert list(written["machineState"])[:4] == ["0", "1", "10", "2"]
    assert "entries" not in written


def test_the_policy_none_writes_an_empty_checkpoint() -> None:
    written = encode_checkpoint(None, "None")
    assert written == b'{"policyName":"None","machineState":{},"checksum":4236770233}'
    assert decode_checkpoint(written, "None").nodes == {}


def test_version_2_without_entries_of_pods_is_read() -> None:
    empty = b'{"policyName":"static","machineState":{},"checksum":%d}'
    from kubelet_trio.managers.memory.file import FileJson, known_checksums

    _, with_pods, v1 = known_checksums(FileJson("static"))
    for checksum in (with_pods, v1):
        assert decode_checkpoint(empty % checksum, "static").blocks == {}


_NULL = {"0": None}
_TABLE = {"total": 1, "systemReserved": 0, "allocatable": 1, "reserved": 0, "free": 1}


def nodes(**fields: Any) -> dict[str, Any]:
    return {"machineState": {"0": {"numberOfAssignments": 0, "cells": [0], **fields}}}


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"{", "truncated"),
        (b"\xff", "malformed"),
        (b"[]", "Expected `object`"),
        (VERSION_1.replace("4215593881", "101010").encode(), "checkpoint is corrupted"),
        (VERSION_1.replace('"size":512', '"size":513').encode(), "checkpoint is corrupted"),
        (VERSION_2.encode(), "pod pod has memory of the pod's own (podEntries)"),
        (edited(policyName="None"), 'configured policy "static" differs from state checkpoint'),
        (edited(machineState=_NULL), "machineState[0]: expected an object, not null"),
        (edited(machineState={"-1": {}}), "machineState[-1]: expected NUMA nodes from 0 to 1023"),
        (edited(machineState={"99999999999": {}}), "expected NUMA nodes from 0 to 1023"),
        (edited(**nodes(cells=[1 << 60])), "machineState[0].cells: expected NUMA nodes"),
        (edited(**nodes(numberOfAssignments=-1)), "numberOfAssignments: expected a number from 0"),
        (edited(**nodes(memoryMap={"memory": None})), "memoryMap[memory]: expected an object"),
        (edited(**nodes(memoryMap={"memory": {"free": -1}})), "expected numbers from 0 to 2^64-1"),
        (
            edited(entries={"p": {"c": [{"numaAffinity": [4096], "type": "memory"}]}}),
            "entries[p][c]: numaAffinity: expected NUMA nodes",
        ),
        (
            edited(entries={"p": {"c": [{"numaAffinity": [0], "type": "memory", "size": -1}]}}),
            "entries[p][c]: size: expected a number",
        ),
    ],
)
def test_a_damaged_checkpoint_is_refused(data: bytes, problem: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        decode_checkpoint(data, "static")
    assert problem in str(caught.value)


def test_what_is_null_or_missing_is_empty() -> None:
    assert decode_checkpoint(edited(machineState=None, entries=None), "static").nodes == {}
    assert decode_checkpoint(b'{"policyName":"static"}', "static").blocks == {}
    state = decode_checkpoint(edited(entries={"p": None, "q": {"c": None}}), "static")
    assert state.blocks == {"p": {}, uid("q"): {"c": ()}}


def test_names_are_escaped_as_go_does() -> None:
    rules = manager(GI)
    wanted = pod(wanting("main", "1Mi"), uid="<&>")
    state = placed(rules, rules.empty(), wanted)
    written = encode_checkpoint(state)
    assert b'"\\u003c\\u0026\\u003e":{"main"' in written
    assert decode_checkpoint(written) == state
