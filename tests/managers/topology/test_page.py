"""The page of the control socket, written and read again."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given

from kubelet_trio.managers import Machine
from kubelet_trio.managers.topology import (
    MachineHoldings,
    read_machine,
    read_topology_page,
    topology_page,
)
from tests.managers.topology.test_draw import HOLDINGS, holdings, machine_of, machines
from tests.managers.topology.trees import names, plant


@given(machine=machines, held=holdings)
def test_a_page_is_read_as_what_was_written(machine: Machine, held: MachineHoldings) -> None:
    page = msgspec.json.decode(msgspec.json.encode(topology_page(machine, held)))
    assert read_topology_page(page) == (machine, held)


@pytest.mark.parametrize("name", names())
def test_a_page_has_every_recorded_machine(name: str, tmp_path: Path) -> None:
    machine = read_machine(plant(name, tmp_path))
    assert read_topology_page(topology_page(machine, None)) == (machine, None)


def test_what_a_page_looks_like() -> None:
    page = topology_page(machine_of(), HOLDINGS)
    assert page["machine"]["cpus"][17] == {
        "id": 17,
        "core": 1,
        "cache": 0,
        "node": 0,
        "package": 0,
        "die": 0,
    }
    assert page["machine"]["nodes"][1] == {
        "id": 1,
        "cpus": "8-15,24-31",
        "memory": 64 << 30,
        "huge_pages": [{"size": 2 << 20, "pages": 2048}, {"size": 1 << 30, "pages": 0}],
        "distances": [21, 10],
    }
    assert page["holdings"]["shared"] == "0-1,14-17,30-31"
    assert page["holdings"]["containers"][1] == {
        "namespace": "ml",
        "pod": "train-x7k2p",
        "container": "trainer",
        "cpus": "8-13,24-29",
        "memory": [{"resource": "memory", "nodes": [0, 1], "bytes": 40 << 30}],
        "devices": {"nvidia.com/gpu": ["GPU-2", "GPU-3"]},
    }


def test_fields_of_a_newer_agent_are_ignored() -> None:
    page = topology_page(machine_of(), HOLDINGS)
    page["more"] = page["machine"]["more"] = 1
    assert read_topology_page(page) == (machine_of(), HOLDINGS)


@pytest.mark.parametrize(
    "page",
    [
        None,
        {},
        {"machine": {"cpus": [], "nodes": [], "isolated": "x", "offline": ""}},
        {**topology_page(machine_of(), None), "holdings": 3},
    ],
)
def test_another_page_is_a_value_error(page: object) -> None:
    with pytest.raises(ValueError, match=r"object|array|list of CPUs|required"):
        read_topology_page(page)
