"""Hints name the sets of NUMA nodes with enough CPUs; those as small as possible are preferred."""

from __future__ import annotations

import pytest

from kubelet_trio.managers import Cpu, Hint, Machine, mask_of
from kubelet_trio.managers.cpus import CpuManager, CpuOptions, CpuState, parse_mask
from kubelet_trio.model import PodUid
from tests.managers.cpus import machines as m
from tests.managers.pods import container, pod

# Two sockets of three cores with two threads: 0-2,6-8 and 3-5,9-11.
_MACHINE: Machine = m.machine_of(
    [Cpu(cpu, cpu % 6, 1, cpu % 6 // 3, cpu % 6 // 3) for cpu in range(12)]
)
FIRST, SECOND, BOTH = 0b01, 0b10, 0b11

Expected = list[tuple[int, bool]]  # nodes, and whether they are preferred


def hints_of(shared: str, cpu: str, own: str | None = None) -> object:
    rules = CpuManager(_MACHINE, frozenset())
    wanted = pod(container("main", cpu))
    exclusive = {} if own is None else {PodUid("uid"): {"main": parse_mask(own)}}
    state = CpuState(parse_mask(shared), exclusive)
    assert wanted.spec is not None
    by_container = rules.hints(state, wanted, wanted.spec.containers[0])
    assert rules.pod_hints(state, wanted) == by_container
    return by_container


def made(expected: Expected) -> object:
    return {"cpu": tuple(Hint(nodes, preferred=preferred) for nodes, preferred in expected)}


@pytest.mark.parametrize(
    ("shared", "cpu", "expected"),
    [
        ("2-11", "2", [(FIRST, True), (SECOND, True), (BOTH, False)]),
        ("2-11", "5", [(SECOND, True), (BOTH, False)]),
        ("2-11", "7", [(BOTH, True)]),
        ("2-11", "11", []),
        ("0,3", "2", [(BOTH, False)]),
        ("0-3", "5", []),
    ],
)
def test_free_cpus_give_hints(shared: str, cpu: str, expected: Expected) -> None:
    assert hints_of(shared, cpu) == made(expected)


@pytest.mark.parametrize(
    ("own", "cpu", "expected"),
    [
        ("0,6", "2", [(FIRST, True), (BOTH, False)]),
        ("3,9", "2", [(SECOND, True), (BOTH, False)]),
        ("0-10", "11", [(BOTH, True)]),
        ("0,3,6,9", "2", []),  # more than it asks for
        ("0,3,6,9", "11", []),
    ],
)
def test_a_container_that_has_its_cpus_gets_the_hints_of_these(
    own: str, cpu: str, expected: Expected
) -> None:
    assert hints_of("", cpu, own) == made(expected)


def test_cpus_of_init_containers_bind_what_comes_after_to_their_nodes() -> None:
    rules = CpuManager(_MACHINE, frozenset())
    wanted = pod(container("main", "4"), init=[container("setup", "2")])
    state = CpuState(parse_mask("0-2,4-8,10-11"), {PodUid("uid"): {"setup": parse_mask("3,9")}})
    assert wanted.spec is not None
    hints = rules.hints(state, wanted, wanted.spec.containers[0])
    assert hints == made([(SECOND, True), (BOTH, False)])


def test_a_pods_hints_count_what_its_containers_have_already() -> None:
    rules = CpuManager(_MACHINE, frozenset())
    wanted = pod(container("one", "2"), container("two", "4"))
    state = CpuState(parse_mask("0-2,4-8,10-11"), {PodUid("uid"): {"one": parse_mask("3,9")}})
    assert rules.pod_hints(state, wanted) == made([(SECOND, True), (BOTH, False)])


_FREE_IN_TWO = ["0", "0,1", "0,2", "0,3", "0,1,2", "0,1,3", "0,2,3", "0,1,2,3"]


@pytest.mark.parametrize(
    ("shared", "cpu", "by_socket", "nodes", "preferred"),
    [
        ("2-3,11", "2", False, _FREE_IN_TWO, ["0"]),
        ("2-3,11", "2", True, _FREE_IN_TWO, ["0", "0,1"]),
        ("0-28,40-57", "41", True, ["0,1,2", "0,1,2,3"], ["0,1,2", "0,1,2,3"]),
    ],
)
def test_a_socket_counts_as_close_if_that_is_wanted(
    shared: str, cpu: str, by_socket: bool, nodes: list[str], preferred: list[str]
) -> None:
    rules = CpuManager(m.FOUR_NODES, frozenset(), CpuOptions(by_socket=by_socket))
    hints = rules.pod_hints(CpuState(parse_mask(shared)), pod(container("main", cpu)))["cpu"]
    assert hints == tuple(
        Hint(mask_of(map(int, these.split(","))), preferred=these in preferred) for these in nodes
    )


def test_reserved_cpus_give_no_hints() -> None:
    rules = CpuManager(_MACHINE, m.cpus_of("0-1,6-7"))
    hints = rules.pod_hints(rules.initial(), pod(container("main", "3")))
    assert hints == made([(SECOND, True), (BOTH, False)])
