"""reservedMemory: what the system keeps of each NUMA node."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from kubelet_trio.managers import Machine, NumaNode
from kubelet_trio.managers.memory import (
    MemoryManager,
    MemoryTable,
    ReservedMemoryError,
    allocatable_blocks,
    parse_reserved_memory,
)
from tests.managers.memory.shapes import GI, HUGE, MI, block, numa

TWO = Machine((), (numa(0, 3 * GI, huge=1), numa(1, 4 * GI, huge=1)))


def test_the_reserved_memory_is_given_in_bytes() -> None:
    given = [(0, {"memory": "1Gi"}), (1, {"memory": "512Mi"}), (1, {HUGE: "1Gi"})]
    found = parse_reserved_memory(TWO, given, {"memory": 1536 * MI, HUGE: GI, "cpu": 1})
    assert found == {0: {"memory": GI}, 1: {"memory": 512 * MI, HUGE: GI}}


@pytest.mark.parametrize(
    ("given", "node_reserved", "problem"),
    [
        (
            [(2, {"memory": "1Gi"})],
            {"memory": GI},
            "the reserved memory configuration references a NUMA node 2 that does not exist on "
            "this machine, which has 0, 1",
        ),
        (
            [(0, {"memory": "1Gi"}), (1, {"memory": "1Gi"})],
            {"memory": 1536 * MI},
            'the total amount "2Gi" of type "memory" is not equal to the value "1536Mi" determined '
            "by Node Allocatable feature: kubeReserved, systemReserved and evictionHard together",
        ),
        (
            [(0, {"memory": "1Gi", HUGE: "1Gi"})],
            {"memory": GI},
            f'the total amount "1Gi" of type "{HUGE}" is not equal to the value "0"',
        ),
        ([], {"memory": GI}, 'the total amount "0" of type "memory" is not equal to the value'),
        ([], {}, "you should specify the system reserved memory"),
        ([(0, {HUGE: "1Gi"})], {HUGE: GI}, "you should specify the system reserved memory"),
        (
            [(0, {"memory": "1Gi"}), (0, {"memory": "1Gi"})],
            {"memory": 2 * GI},
            "the reserved memory has a duplicate value for NUMA node 0 and resource",
        ),
        ([(0, {"cpu": "1"})], {}, "NUMA node 0: cpu: the limit type is not supported, only memory"),
        ([(0, {"memory": "x"})], {}, "NUMA node 0: memory: 'x' is not a quantity"),
        ([(0, {"memory": "0"})], {}, "NUMA node 0: memory: 0: expected a whole number of bytes"),
        ([(0, {"memory": "1500m"})], {}, "memory: 1500m: expected a whole number of bytes"),
        ([(0, {"memory": "-1Gi"})], {}, "memory: -1Gi: expected a whole number of bytes"),
        (
            [(0, {"memory": "3500Mi"})],
            {"memory": 3500 * MI},
            "NUMA node 0: 3500Mi of memory is more than the 3Gi that the node has besides its huge",
        ),
        (
            [(0, {"memory": "1Gi", HUGE: "2Gi"})],
            {"memory": GI, HUGE: 2 * GI},
            f"NUMA node 0: 2Gi of {HUGE} is more than the 1Gi that the node has",
        ),
    ],
)
def test_what_does_not_suit_the_machine_is_refused(
    given: list[tuple[int, Mapping[str, str]]], node_reserved: Mapping[str, int], problem: str
) -> None:
    with pytest.raises(ReservedMemoryError) as caught:
        parse_reserved_memory(TWO, given, node_reserved)
    assert str(caught.value).startswith("reservedMemory (--reserved-memory): ")
    assert problem in str(caught.value)


def test_huge_pages_are_no_memory_of_containers() -> None:
    state = MemoryManager(TWO, {0: {"memory": GI}, 1: {HUGE: GI}}).empty()
    assert state.nodes[0].tables == {
        HUGE: MemoryTable(GI, 0, GI, 0, GI),
        "memory": MemoryTable(4 * GI, GI, 2 * GI, 0, 2 * GI),
    }
    assert allocatable_blocks(state) == (
        block([0], GI, HUGE),
        block([0], 2 * GI),
        block([1], 4 * GI),
    )


def test_a_node_without_memory_has_nothing_to_give() -> None:
    bare = NumaNode(1, frozenset({1}), 0, {2 * MI: 0})
    state = MemoryManager(Machine((), (numa(0, GI), bare)), {0: {"memory": MI}}).empty()
    assert state.nodes[1].tables == {
        "hugepages-2Mi": MemoryTable(0, 0, 0, 0, 0),
        "memory": MemoryTable(0, 0, 0, 0, 0),
    }
    assert allocatable_blocks(state) == (block([0], GI - MI),)
