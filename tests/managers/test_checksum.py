"""The checksums of checkpoints are the Go kubelet's."""

from __future__ import annotations

import pytest

from kubelet_trio.managers.checksum import (
    GoValue,
    checksum,
    go_map,
    go_pointer,
    go_slice,
    go_struct,
    go_value,
)

_ENTRIES = "map[string]map[string]string"


def _cpu_checkpoint(shared: str, entries: dict[str, dict[str, str]]) -> GoValue:
    by_pod = {
        pod: go_map("map[string]string", {name: go_value("string", c) for name, c in of.items()})
        for pod, of in entries.items()
    }
    fields = {
        "PolicyName": go_value("string", "none"),
        "DefaultCPUSet": go_value("string", shared),
        "Entries": go_map(_ENTRIES, by_pod),
        "Checksum": go_value("checksum.Checksum", 0),
    }
    return go_pointer(go_struct("state.CPUManagerCheckpoint", fields))


# What the Go kubelet wrote into its files and its tests.
@pytest.mark.parametrize(
    ("shared", "entries", "expected"),
    [
        ("", {}, 1353318690),
        ("1-3", {"pod": {"container1": "4-6", "container2": "1-3"}}, 3610638499),
        ("1-3", {"pod": {"container2": "1-3", "container1": "4-6"}}, 3610638499),
    ],
)
def test_a_checksum_equals_the_go_kubelets(
    shared: str, entries: dict[str, dict[str, str]], expected: int
) -> None:
    assert checksum(_cpu_checkpoint(shared, entries)) == expected


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (go_map("map[string]string", None), "<nil>"),
        (go_slice("[]int", None), "<nil>"),
        (go_slice("[]int", [go_value("int", 3), go_value("int", 1)]), "[3 1]"),
        (go_map("map[int]int", {10: go_value("int", 1), 9: go_value("int", 2)}), "map[9:2 10:1]"),
    ],
)
def test_values_are_printed_as_gos_deep_printer_does(value: GoValue, text: str) -> None:
    assert value.text == text


def test_a_pointer_in_a_map_shows_that_it_is_one_and_not_of_what_type() -> None:
    node = go_pointer(go_struct("state.Node", {"Cells": go_slice("[]int", [])}))
    assert go_map("state.Nodes", {0: node}).text == "map[0:<*>{Cells:([]int)[]}]"
    holder = go_struct("state.Holder", {"Node": node})
    assert holder.text == "{Node:(*state.Node){Cells:([]int)[]}}"
