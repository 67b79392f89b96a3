"""CPUs are taken in equal shares of NUMA nodes, if one is not enough (KEP-2902)."""

from __future__ import annotations

import pytest

from kubelet_trio.managers import Machine
from kubelet_trio.managers.cpus import NotEnoughCpusError
from kubelet_trio.managers.cpus.distribute import take_distributed
from kubelet_trio.managers.cpus.layout import Layout
from kubelet_trio.managers.cpus.masks import format_mask, parse_mask
from tests.managers.cpus import machines as m


def taken(machine: Machine, available: str, count: int, group: int) -> str:
    return format_mask(take_distributed(Layout(machine), parse_mask(available), count, group))


@pytest.mark.parametrize(
    ("machine", "available", "count", "group", "expected"),
    [
        (m.ONE_SOCKET, "0-7", 0, 1, ""),
        (m.ONE_SOCKET, "0-7", 2, 1, "0,4"),
        (m.TWO_SOCKETS, "0-11", 6, 1, "0,2,4,6,8,10"),
        (m.FOUR_NODES, "0-79", 20, 1, "0-9,40-49"),
        (m.FOUR_NODES, "10-39,50-79", 20, 1, "10-19,50-59"),
        (m.FOUR_NODES, "1-39,41-79", 60, 1, "10-39,50-79"),
        (m.TWO_SOCKETS, "0-11", 8, 1, "0-3,6-9"),
        (m.FOUR_NODES, "0-79", 64, 1, "0-7,10-17,20-27,30-37,40-47,50-57,60-67,70-77"),
        (m.FOUR_NODES, "0-79", 48, 1, "0-7,10-17,20-27,40-47,50-57,60-67"),
        (m.FOUR_NODES, "1-29,32-39,41-69,72-79", 48, 1, "1-8,10-17,20-27,41-48,50-57,60-67"),
        (m.FOUR_NODES, "2-29,31-39,42-69,71-79", 48, 1, "10-17,20-27,31-38,50-57,60-67,71-78"),
        (m.FOUR_NODES, "0-2,10-12,20-22,30-32,40-41,50-51,60-61,70-71", 16, 1,
         "0-1,10-11,20-21,30-31,40-41,50-51,60-61,70-71"),
        (m.TWO_SOCKETS, "1-5,7-11", 1, 1, "1"),
        (m.TWO_SOCKETS, "1-5,7-11", 1, 2, "2"),  # no group: packed
        (m.FOUR_NODES, "0-79", 26, 1, "0-6,10-16,40-45,50-55"),
        (m.FOUR_NODES, "0-79", 26, 2, "0-6,10-15,40-46,50-55"),
        (m.FOUR_NODES, "0-79", 62, 1, "0-7,10-17,20-27,30-37,40-47,50-57,60-66,70-76"),
        (m.FOUR_NODES, "0-79", 62, 2, "0-7,10-17,20-27,30-36,40-47,50-57,60-67,70-76"),
        (m.FOUR_NODES, "0-8,10-18,20-48,50-58,60-79", 62, 1,
         "0-7,10-17,20-27,30-37,40-46,50-56,60-67,70-77"),
        (m.FOUR_NODES, "0-8,10-18,20-48,50-58,60-79", 62, 2,
         "0-7,10-16,20-27,30-37,40-47,50-56,60-67,70-77"),
        (m.FOUR_NODES, "0-3,10-13,20-23,30-36,40-43,50-53,60-63,70-76", 34, 1,
         "0-3,10-13,20-23,30-34,40-43,50-53,60-63,70-74"),
        (m.EIGHT_NODES, "0,128,30-31,158-159,43-47,171-175,62-63,190-191,75-79,203-207,94,96,"
         "222-223,101-111,229-239,126-127,254-255", 28, 1,
         "43-47,75-79,96,101-105,171-174,203-206,229-232"),
    ],
)  # fmt: skip
def test_nodes_give_equal_shares(
    machine: Machine, available: str, count: int, group: int, expected: str
) -> None:
    assert taken(machine, available, count, group) == expected


def test_the_first_of_the_best_sets_of_many_nodes_is_taken() -> None:
    # Upstream's search keeps a reference to its set and goes on in it: it takes node 7 for 3.
    cpus = parse_mask(taken(m.EIGHT_NODES, "0-255", 112, 1))
    nodes = Layout(m.EIGHT_NODES).nodes.values()
    assert [(cpus & node).bit_count() for node in nodes] == [28, 28, 28, 28, 0, 0, 0, 0]


def test_a_remainder_that_does_not_divide_into_groups_ends() -> None:
    # 3 free CPUs in each node are no two groups of 2: the rest is packed.
    available = "0-2,10-12,20-22,30-32"
    assert parse_mask(taken(m.FOUR_NODES, available, 12, 2)) == parse_mask(available)


def test_too_few_cpus_are_an_error() -> None:
    with pytest.raises(NotEnoughCpusError, match="requested=6, available=4"):
        taken(m.TWO_SOCKETS, "0-3", 6, 1)
