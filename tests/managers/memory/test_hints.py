"""The ways to place a request, as they are given to the topology manager."""

from __future__ import annotations

import pytest
from lightkube.models.core_v1 import Container

from kubelet_trio.managers import Hint, Hints, Machine, NumaNode
from kubelet_trio.managers.memory import MemoryManager, memory_nodes
from kubelet_trio.managers.memory.requests import pod_sizes
from tests.managers.memory.shapes import (
    GI,
    HUGE,
    MI,
    holding,
    manager,
    placed,
    uid,
    wanting,
)
from tests.managers.pods import pod

MAIN = wanting("main", "1Gi", "1Gi")


def both(*hints: tuple[int, bool]) -> Hints:
    found = tuple(Hint(nodes, preferred=preferred) for nodes, preferred in hints)
    return {"memory": found, HUGE: found}


def test_single_nodes_come_first_and_are_preferred_if_one_is_enough() -> None:
    rules = manager(1536 * MI, 1536 * MI, huge=1)
    found = rules.hints(rules.empty(), pod(MAIN), MAIN)
    assert found == both((0b01, True), (0b10, True), (0b11, False))


def test_nodes_of_a_full_group_are_no_hint() -> None:
    rules = manager(*[1536 * MI] * 4, huge=1)
    state = holding(rules, ([0, 1], 2 * GI, 2))
    found = rules.hints(state, pod(MAIN), MAIN)
    assert found == both((0b0100, True), (0b1000, True), (0b1100, False))


def test_a_group_is_not_preferred_where_a_node_alone_would_be_large_enough() -> None:
    rules = manager(1536 * MI, 1536 * MI, huge=20)
    state = holding(rules, ([0, 1], 2 * GI, 24))
    main = wanting("main", "1Gi", "16Gi")
    assert rules.hints(state, pod(main), main) == both((0b11, False))


def test_a_node_with_blocks_of_its_own_joins_no_group() -> None:
    rules = manager(GI, GI, GI)
    state = holding(rules, ([1], 1))
    main = wanting("main", "1Gi")
    masks = [hint.nodes for hint in rules.hints(state, pod(main), main)["memory"] or ()]
    assert masks == [0b001, 0b100, 0b101]


def test_groups_stand_among_free_nodes_in_lexicographic_order() -> None:
    rules = manager(*[2 * GI] * 5)
    state = holding(rules, ([1, 2], 3 * GI))
    main = wanting("main", "1Gi")
    masks = [hint.nodes for hint in rules.hints(state, pod(main), main)["memory"] or ()]
    assert masks == [1, 8, 16, 0b01001, 0b10001, 0b00110, 0b11000, 0b11001]


def test_what_fits_nowhere_has_no_hints_and_is_refused_later() -> None:
    # Upstream's empty map: the topology manager then asks the other managers only.
    rules = manager(GI)
    main = wanting("main", "2Gi")
    assert rules.hints(rules.empty(), pod(main), main) == {}
    assert rules.pod_hints(rules.empty(), pod(main)) == {}


def test_a_container_with_blocks_has_the_hint_of_them() -> None:
    rules = manager(2 * GI, 2 * GI, huge=1)
    state = placed(rules, rules.empty(), pod(MAIN), Hint(0b10, preferred=True))
    assert rules.hints(state, pod(MAIN), MAIN) == both((0b10, True))
    assert rules.pod_hints(state, pod(MAIN)) == both((0b10, True))


@pytest.mark.parametrize(
    "now",
    [wanting("main", "1Gi"), wanting("main", "512Mi", "1Gi"), wanting("main", "1Gi", "2Gi")],
    ids=["fewer kinds", "less memory", "more huge pages"],
)
def test_a_container_that_asks_for_something_else_by_now_has_no_hints(now: Container) -> None:
    rules = manager(2 * GI, 2 * GI, huge=2)
    state = placed(rules, rules.empty(), pod(MAIN))
    assert rules.hints(state, pod(now), now) == {}


def test_a_pod_is_placed_as_a_whole() -> None:
    rules = manager(3 * GI, 3 * GI)
    whole = pod(wanting("a", "2Gi"), wanting("b", "2Gi"), init=[wanting("setup", "1Gi")])
    assert rules.pod_hints(rules.empty(), whole) == {"memory": (Hint(0b11, preferred=True),)}


def init(*sizes: str) -> list[Container]:
    """Return init containers; a size that ends with a star is a sidecar's."""
    return [
        wanting(f"init{n}", s.rstrip("*"), restart="Always" if s.endswith("*") else "")
        for n, s in enumerate(sizes)
    ]


@pytest.mark.parametrize(
    ("first", "main", "total"),
    [
        (["1Gi", "4Gi"], ["1Gi", "2Gi"], 4),
        (["1Gi", "3Gi"], ["2Gi", "3Gi"], 5),
        (["2Gi*", "4Gi"], ["1Gi", "2Gi"], 6),
        (["2Gi*", "4Gi"], ["2Gi", "3Gi"], 7),
        (["4Gi", "2Gi*"], ["1Gi"], 4),
        (["1Gi*", "1Gi*", "3Gi"], ["1Gi"], 5),
    ],
)
def test_a_pod_needs_the_most_that_runs_at_one_time(
    first: list[str], main: list[str], total: int
) -> None:
    mains = [wanting(f"main{n}", size) for n, size in enumerate(main)]
    assert pod_sizes(pod(*mains, init=init(*first))) == {"memory": total * GI}


def test_kinds_of_memory_are_counted_apart() -> None:
    whole = pod(
        wanting("a", "2Gi", "1Gi"),
        wanting("b", "3Gi", "2Gi"),
        init=[wanting("c", "1Gi", "1Gi"), wanting("d", "3Gi", "4Gi")],
    )
    assert pod_sizes(whole) == {"memory": 5 * GI, HUGE: 4 * GI}


def test_many_nodes_without_memory_cost_nothing() -> None:
    # As GPUs with memory nodes of their own have it, before the driver brings their memory.
    rules = manager(8 * GI, 8 * GI)
    more = tuple(NumaNode(n, frozenset(), 0, {GI: 0}) for n in range(2, 34))
    rules = MemoryManager(Machine((), (*rules.machine.nodes, *more)), rules.reserved)
    large = pod(wanting("main", "12Gi"))
    state = placed(rules, rules.empty(), large)
    assert memory_nodes(state, uid("uid"), "main") == 0b11
    state = placed(rules, rules.release(state, uid("uid")), pod(wanting("main", "1Gi")))
    assert memory_nodes(state, uid("uid"), "main") == 0b01
