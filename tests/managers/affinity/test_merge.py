"""Hints are merged to the best nodes that all resources can share, as upstream merges them."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubelet_trio.managers import Hint, Hints
from kubelet_trio.managers.affinity import Affinity, NodeSets, merge, offers
from kubelet_trio.managers.settings import TopologyOptions
from tests.managers.affinity.make import EIGHT, hint, hints, machine, naive_merge

LOWEST = TopologyOptions()
CLOSEST = TopologyOptions(prefer_closest=True)

# Resources, each with its hints, and the merged hint on a machine with nodes 0-3.
ANY_POLICY = [
    ("0 | 0", "0"),
    ("1 | 1", "1"),
    ("- | 0", "0"),
    ("- | 1", "1"),
    ("0 1 | 0", "0"),
    ("0 1 | 1", "1"),
    ("0 1 | 0 0,1?", "0"),
    # A wide preferred hint wins over a narrow one that is not.
    ("1 0,1? | 0 1 0,1?", "1"),
    ("0,1 0,2? 2 | 0,1 2?", "0,1"),
    # Hints for any node leave the choice to the others.
    ("* 0 | 1 | *", "1"),
    ("* | 2 | *", "2"),
]
SEVERAL_NODES = [
    ("", "0,1,2,3"),
    ("-", "0,1,2,3"),
    ("*", "0,1,2,3"),
    ("*?", "0,1,2,3?"),
    ("none", "0,1,2,3?"),
    ("none | 1", "1?"),
    ("0 | 1", "0,1,2,3?"),
    ("0 | 0?", "0?"),
    ("1? | 1", "1?"),
    ("0 | 0,1", "0?"),
    ("1 | 0,1", "1?"),
    ("0 1 | 0,1?", "0?"),
    ("0,1 0,2 | 0,1 0,2", "0,1"),
    # As many nodes as the most demanding resource needs.
    ("0,1,2,3? 0,1? | 0,1?", "0,1?"),
    ("0,1,2,3? 0,1? | 0,3?", "0,3?"),
    ("0,1,2,3? 0,1? | 1,2?", "1,2?"),
    ("0,1,2,3? 0,1? | 2,3?", "2,3?"),
    ("0,1,2,3? 0,1? | 1,2? 2,3?", "1,2?"),
    ("0,1,2,3? 0,1? | 1,2,3? 1,2? 1,3? 2,3?", "1,2?"),
    # Nobody needs as many nodes as the widest shared set has: the narrowest, then the lowest.
    ("0,1,2? | *?", "0,1,2?"),
    ("0,1,2? 1? | *? | 0,1,2,3?", "0,1,2?"),
    # Nodes that the machine does not have are not shared ones.
    ("4", "0,1,2,3?"),
    ("3,4", "3"),
]
SINGLE_NODE = [
    ("", "*"),
    ("-", "*"),
    ("*", "*"),
    ("*?", "*?"),
    ("none", "*?"),
    ("0 | 1", "*?"),
    ("0 | 0?", "*?"),
    ("1 | 1?", "*?"),
    ("0 1 | 0,1?", "*?"),
    ("0,1 | 0 1 0,1?", "*?"),
    ("0 1 0,1? | -", "0"),
    ("3 2 | 2,3 2 | *", "2"),
]


def resources(text: str) -> list[Hints]:
    """Read `0 1 | - | none`: one manager a bar; `-` asks for nothing, `none` cannot be served."""
    texts = [part.strip() for part in text.split("|")] if text else []
    return [{} if t == "-" else {"r": ()} if t == "none" else {"r": hints(t)} for t in texts]


def affinity(policy: str, options: TopologyOptions = LOWEST) -> Affinity:
    nodes = EIGHT if options.prefer_closest else machine()
    return Affinity(policy, "container", options, nodes)


@pytest.mark.parametrize(("given", "wanted"), ANY_POLICY + SEVERAL_NODES)
def test_best_effort_takes_the_best_and_restricted_insists_on_a_preferred_one(
    given: str, wanted: str
) -> None:
    best = hint(wanted)
    assert affinity("best-effort").merge(resources(given)) == (best, True)
    assert affinity("restricted").merge(resources(given)) == (best, best.preferred)


@pytest.mark.parametrize(("given", "wanted"), [*ANY_POLICY[:8], *SINGLE_NODE])
def test_single_numa_node_accepts_one_node_or_none(given: str, wanted: str) -> None:
    best = hint(wanted)
    assert affinity("single-numa-node").merge(resources(given)) == (best, best.preferred)


def test_on_one_node_a_single_node_is_any_node() -> None:
    single = Affinity("single-numa-node", "container", TopologyOptions(), machine([0]))
    assert single.merge([{"cpu": hints("0")}]) == (hint("*"), True)


@pytest.mark.parametrize("text", ["", "-", "none", "0 | 1"])
def test_the_none_policy_admits_all_and_says_nothing_of_nodes(text: str) -> None:
    assert affinity("none").merge(resources(text)) == (Hint(None, preferred=False), True)


def test_a_resource_without_a_preference_does_not_bind_the_others() -> None:
    given: list[Hints] = [{"cpu": None, "memory": hints("1 2")}, {}]
    assert affinity("restricted").merge(given) == (hint("1"), True)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("0,4 0,2 | 0,4 0,2", "0,2"),
        ("4 0,2 | 4 0,2", "4"),  # fewer nodes win before nearer ones
        ("0,1,2,3? 0,1? | 1,2? 2,3?", "2,3?"),
        ("0,1,2,3? 0,1? | 1,2,3? 1,2? 1,3? 2,3?", "2,3?"),
        ("6,7 4,6 | 4,6 6,7", "4,6"),  # 11 one way and 13 the other is as far as 12 both ways
        ("2,3 0,1 | 0,1 2,3", "0,1"),
    ],
)
def test_near_nodes_win_where_the_option_asks_for_them(given: str, wanted: str) -> None:
    best = hint(wanted)
    assert affinity("best-effort", CLOSEST).merge(resources(given)) == (best, True)
    assert affinity("restricted", CLOSEST).merge(resources(given)) == (best, best.preferred)


_MASKS = st.one_of(st.none(), st.integers(0, 31))
_HINTS = st.builds(Hint, _MASKS, st.booleans())
_OFFERS = st.lists(st.lists(_HINTS, max_size=5), max_size=4)
_ROWS = st.lists(st.lists(st.integers(10, 13), min_size=4, max_size=4), min_size=4, max_size=4)


@given(_OFFERS, _ROWS, st.booleans())
def test_the_result_is_that_of_looking_at_every_choice(
    given: list[list[Hint]], distances: list[list[int]], prefer_closest: bool
) -> None:
    options = TopologyOptions(prefer_closest=prefer_closest)
    # Node 4 is missing: numbers of nodes have gaps on some machines.
    nodes = machine([0, 1, 2, 5], distances)
    sets = NodeSets.of(nodes, prefer_closest=prefer_closest)
    assert merge(given, sets) == naive_merge(given, nodes, options)


@given(st.randoms(use_true_random=False), st.integers(20, 63))
def test_many_hints_give_the_same_result_by_the_counting_of_pairs(
    chance: random.Random, count: int
) -> None:
    nodes = machine(range(6))
    given = [
        [Hint(mask, preferred=False) for mask in chance.sample(range(1, 64), count)]
        for _ in range(2)
    ]
    best = merge(given, NodeSets.of(nodes, prefer_closest=False))
    assert best == naive_merge(given, nodes, TopologyOptions())


def _all_sets(least: int, *, preferred: bool) -> tuple[Hint, ...]:
    """Return the hints of a resource that any `least` of eight nodes can serve."""
    masks = [mask for mask in range(1, 256) if mask.bit_count() >= least]
    return tuple(Hint(mask, preferred and mask.bit_count() == least) for mask in masks)


def test_four_resources_with_all_sets_of_eight_nodes_are_merged_to_the_narrowest() -> None:
    # Upstream's loop would look at billions of choices.
    given: Sequence[Hints] = [
        {"device": _all_sets(1, preferred=False)},
        {"cpu": _all_sets(2, preferred=False)},
        {"memory": _all_sets(1, preferred=False), "hugepages-2Mi": _all_sets(3, preferred=False)},
    ]
    assert affinity("restricted", CLOSEST).merge(given) == (hint("0,1,2?"), False)


def test_offers_name_each_resource_of_each_manager() -> None:
    given: list[Hints] = [{}, {"a": None, "b": ()}, {"c": hints("0 1?")}]
    assert offers(given) == [hints("*"), hints("*"), hints("*?"), hints("0 1?")]


def test_near_nodes_need_distances() -> None:
    with pytest.raises(ValueError, match=r"NUMA node 0 .*remove prefer-closest-numa-nodes"):
        Affinity("restricted", "pod", CLOSEST, machine([0, 1]))
    Affinity("none", "pod", CLOSEST, machine([0, 1]))


def test_more_nodes_than_allowed_are_refused() -> None:
    many = machine(range(9))
    with pytest.raises(ValueError, match=r"more than 8 NUMA nodes, and this one has 9"):
        Affinity("best-effort", "container", TopologyOptions(), many)
    Affinity("best-effort", "container", TopologyOptions(max_nodes=9), many)
    Affinity("none", "container", TopologyOptions(), many)


@pytest.mark.parametrize(("policy", "scope"), [("best", "pod"), ("none", "node")])
def test_unknown_policies_and_scopes_are_refused(policy: str, scope: str) -> None:
    with pytest.raises(ValueError, match="is none of"):
        Affinity(policy, scope, TopologyOptions(), machine())
