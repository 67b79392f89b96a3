"""CPUs are taken close together: as whole as they can be, from the fullest parts first."""

from __future__ import annotations

import pytest

from kubelet_trio.managers import Machine
from kubelet_trio.managers.cpus import CpuManager, CpuOptions, NotEnoughCpusError
from kubelet_trio.managers.cpus.layout import Layout
from kubelet_trio.managers.cpus.masks import format_mask, parse_mask
from kubelet_trio.managers.cpus.take import take_packed
from tests.managers.cpus import machines as m


def taken(machine: Machine, available: str, count: int, **options: bool) -> str:
    manager = CpuManager(machine, frozenset(), CpuOptions(**options))
    return format_mask(manager.take(parse_mask(available), count))


@pytest.mark.parametrize(
    ("machine", "available", "count", "expected"),
    [
        (m.ONE_SOCKET, "0-7", 0, ""),
        (m.ONE_SOCKET, "0-7", 1, "0"),
        (m.ONE_SOCKET, "1,3,5-7", 1, "6"),  # the thread of a core that is used anyway
        (m.ONE_SOCKET, "0-7", 2, "0,4"),
        (m.ONE_SOCKET, "0-7", 8, "0-7"),
        (m.ONE_SOCKET, "0-3,6", 2, "2,6"),  # the only whole core
        (m.TWO_SOCKETS, "0-11", 6, "0,2,4,6,8,10"),
        (m.TWO_SOCKETS, "0-11", 8, "0-2,4,6-8,10"),
        (m.TWO_SOCKETS, "1-5,7-11", 1, "2"),
        (m.TWO_SOCKETS_NO_SMT, "0-1,3-7", 4, "4-7"),
        (m.FOUR_NODES, "0-79", 20, "0-9,40-49"),
        (m.FOUR_NODES, "10-39,50-79", 20, "10-19,50-59"),
        (m.FOUR_NODES, "0-79", 40, "0-19,40-59"),
        (m.FOUR_NODES, "0-79", 60, "0-29,40-69"),
        (m.FOUR_NODES, "1-39,41-79", 60, "10-39,50-79"),
        (m.FOUR_NODES, "0-79", 64, "0-31,40-71"),
        (m.PHI, "1-2,9,11-13,23,25,35,38,48,51,53-54,61,113,173,233", 12,
         "1,11,13,23,25,35,38,48,53,113,173,233"),
    ],
)  # fmt: skip
def test_whole_parts_of_the_machine_come_first(
    machine: Machine, available: str, count: int, expected: str
) -> None:
    assert taken(machine, available, count) == expected


@pytest.mark.parametrize(
    ("machine", "available", "expected"),
    [
        (m.ONE_SOCKET, "0-7", [0, 4, 1, 5, 2, 6, 3, 7]),
        (m.ONE_SOCKET, "3-7", [4, 5, 6, 3, 7]),
        (m.TWO_SOCKETS, "0-11", [0, 6, 2, 8, 4, 10, 1, 7, 3, 9, 5, 11]),
        (m.TWO_SOCKETS, "1-11", [6, 2, 8, 4, 10, 1, 7, 3, 9, 5, 11]),
        (m.TWO_SOCKETS, "1-5,7-11", [2, 8, 4, 10, 1, 7, 3, 9, 5, 11]),
        (m.THREE_SOCKETS, "0-3,6-13", [12, 13, 0, 1, 2, 3, 6, 7, 8, 9, 10, 11]),
    ],
)
def test_the_fullest_socket_and_core_come_first(
    machine: Machine, available: str, expected: list[int]
) -> None:
    layout, free = Layout(machine), parse_mask(available)
    cores = [layout.cores[core] & free for core in layout.free_cores(free)]
    order = [cpu for core in cores for cpu in sorted(m.cpus_of(format_mask(core)))]
    assert order == expected


@pytest.mark.parametrize(
    ("machine", "available", "count", "expected"),
    [
        (m.CACHES, "1-15", 10, "1-2,4-11"),
        (m.TWO_SOCKETS, "1-5,7-11", 1, "1"),
        (m.CACHES_TWO_SOCKETS, "0-15", 4, "0-3"),
        (m.CACHES_TWO_SOCKETS, "2-15", 6, "2-7"),
        (m.CACHES_TWO_SOCKETS, "8-15", 4, "8-11"),
        (m.CACHES_TWO_NODES, "3-8,12", 2, "4-5"),
        (m.CACHES_SMT, "2-7,10-15", 6, "4-6,12-14"),
        (m.CACHES_SMT, "1-7,9-15", 10, "1,4-7,9,12-15"),
        # An odd number: the last core is given in part.
        (m.SMALL, "4-31", 5, "8-12"),
        (m.ROME, "2-63,66-127", 3, "2-3,66"),
        (m.ROME, "2-63,65-127", 3, "2,65-66"),
        (m.ROME, "2-63,65-127", 4, "4-5,68-69"),
        (m.ROME, "2-63,65-127", 11, "2,4-7,65-66,68-71"),
        (m.SUB_NUMA, "2-119,121-127", 5, "2-3,121-123"),
        (m.SUB_NUMA, "2-119,121-127", 4, "2-3,122-123"),
        (m.SUB_NUMA, "2-119,122-239", 6, "2-4,122-124"),
        (m.HYBRID, "2-3,8-23", 6, "2-3,8-9,16-17"),
        (m.GRAVITON, "2-5,10-11,16-17,20-63", 12, "2-5,10-11,16-17,20-23"),
        (m.SMALL, "4-7,12-15,20-23,28-31", 8, "4-7,12-15"),
        (m.TWO_NODES_A_SOCKET, "4-191", 48, "48-95"),
    ],
)
def test_cpus_that_share_a_cache_come_first_if_that_is_wanted(
    machine: Machine, available: str, count: int, expected: str
) -> None:
    assert taken(machine, available, count, by_cache=True) == expected


@pytest.mark.parametrize(
    ("machine", "available", "count", "expected"),
    [
        (m.ONE_SOCKET, "0-7", 3, "0-2"),
        (m.TWO_SOCKETS, "0-11", 2, "0,2"),
        (m.TWO_SOCKETS, "0-11", 3, "0,2,4"),
        (m.TWO_SOCKETS, "0-11", 6, "0,2,4,6,8,10"),
        (m.TWO_SOCKETS, "0-11", 8, "0-4,6,8,10"),
        (m.TWO_SOCKETS_NO_SMT, "0-7", 2, "0-1"),
        (m.FOUR_NODES, "0-79", 8, "0-7"),
        (m.PHI, "0-287", 12, "0-2,9-10,13-14,21-22,25-26,33"),
    ],
)
def test_threads_of_different_cores_come_first_if_that_is_wanted(
    machine: Machine, available: str, count: int, expected: str
) -> None:
    assert taken(machine, available, count, across_cores=True) == expected


def test_too_few_cpus_are_an_error_that_says_how_many_there_are() -> None:
    with pytest.raises(NotEnoughCpusError) as caught:
        taken(m.ONE_SOCKET, "0,2,4,6", 5)
    assert str(caught.value) == (
        "not enough cpus available to satisfy request: requested=5, available=4"
    )


def test_a_core_of_which_a_thread_is_not_free_is_not_taken_whole() -> None:
    # Upstream compares with the average of 24 CPUs and 16 cores, and takes CPU 8 as well.
    assert format_mask(take_packed(Layout(m.HYBRID), parse_mask("16-17"), 2)) == "16-17"
