"""Which nodes a container's memory is on."""

from __future__ import annotations

import pytest
from lightkube.models.core_v1 import Container, Pod, ResourceRequirements

from kubelet_trio.managers import Hint, Refusal, mask_of
from kubelet_trio.managers.memory import memory_nodes, release_container
from tests.managers.memory.shapes import (
    GI,
    HUGE,
    MI,
    NO_AFFINITY,
    block,
    free,
    groups,
    held,
    holding,
    manager,
    placed,
    tried,
    uid,
    wanting,
)
from tests.managers.pods import pod

ONE = pod(wanting("main", "1Gi", "1Gi"))


def hint(*nodes: int, preferred: bool = False) -> Hint:
    return Hint(mask_of(nodes), preferred)


def message(found: object) -> str:
    assert isinstance(found, Refusal)
    assert found.reason == "UnexpectedAdmissionError"
    return found.message


def test_without_affinity_the_fewest_and_lowest_nodes_are_taken() -> None:
    rules = manager(1536 * MI, 1536 * MI, huge=1)
    state = placed(rules, rules.empty(), ONE)
    assert held(state, ONE) == {"main": (block([0], GI, HUGE), block([0], GI))}
    assert free(state) == [512 * MI, 1536 * MI]
    assert free(state, HUGE) == [0, GI]
    assert groups(state) == [(0b01, 2), (0b10, 0)]
    assert memory_nodes(state, uid("uid"), "main") == 0b01


def test_more_than_a_node_has_is_filled_from_the_lowest_node_up() -> None:
    rules = manager(*[512 * MI] * 4, huge=1)
    state = placed(rules, rules.empty(), ONE, Hint(None, preferred=True))
    assert held(state, ONE) == {"main": (block([0, 1], GI, HUGE), block([0, 1], GI))}
    assert free(state) == [0, 0, 512 * MI, 512 * MI]
    assert free(state, HUGE) == [0, GI, GI, GI]
    assert groups(state) == [(0b0011, 2), (0b0011, 2), (0b0100, 0), (0b1000, 0)]


def test_the_affinity_of_the_topology_manager_is_kept() -> None:
    rules = manager(GI, GI, GI, huge=1)
    state = placed(rules, rules.empty(), ONE, hint(2, preferred=True))
    assert held(state, ONE)["main"] == (block([2], GI, HUGE), block([2], GI))


def test_an_affinity_that_is_too_narrow_is_extended() -> None:
    rules = manager(*[512 * MI] * 3)
    wanted = pod(wanting("main", "1Gi"))
    state = placed(rules, rules.empty(), wanted, hint(1))
    assert held(state, wanted)["main"] == (block([0, 1], GI),)
    state = placed(rules, rules.empty(), wanted, hint(2, preferred=True))
    assert held(state, wanted)["main"] == (block([0, 2], GI),)


def test_two_containers_share_a_group() -> None:
    rules = manager(GI, GI, GI)
    state = holding(rules, ([0, 1], 1536 * MI))
    wanted = pod(wanting("main", "512Mi"))
    state = placed(rules, state, wanted, hint(0, 1))
    assert free(state) == [0, 0, GI]
    assert groups(state) == [(0b011, 2), (0b011, 2), (0b100, 0)]


def test_a_single_node_of_a_group_is_extended_to_the_group() -> None:
    # Upstream books it on the one node, whose group then differs from that of the others.
    rules = manager(GI, GI, GI)
    state = holding(rules, ([0, 1], 1280 * MI))
    wanted = pod(wanting("main", "256Mi"))
    assert free(state) == [0, 768 * MI, GI]
    state = placed(rules, state, wanted, hint(1))
    assert held(state, wanted)["main"] == (block([0, 1], 256 * MI),)
    assert groups(state) == [(0b011, 2), (0b011, 2), (0b100, 0)]
    assert message(tried(rules, state, pod(wanting("main", 1), uid="b"), hint(1, preferred=True)))


@pytest.mark.parametrize(
    ("nodes", "holders", "wanted", "affinity", "problem"),
    [
        (
            [GI],
            [([0], 512 * MI)],
            "1Gi",
            NO_AFFINITY,
            "failed to get the default NUMA affinity, no NUMA nodes with enough memory is "
            "available",
        ),
        (
            [GI, 512 * MI, 512 * MI],
            [([0], 512 * MI)],
            "1Gi",
            Hint(None, preferred=True),
            "failed to find the default preferred hint",
        ),
        (
            [512 * MI, 1536 * MI, 1536 * MI],
            [([1, 2], 2 * GI)],
            "1Gi",
            hint(0),
            "failed to find NUMA nodes to extend the current topology hint",
        ),
        (
            [GI, 512 * MI, 512 * MI],
            [([0], 512 * MI)],
            "1Gi",
            hint(1, preferred=True),
            "failed to find the extended preferred hint",
        ),
        (
            [GI, GI],
            [([0], 1)],
            "1Gi",
            hint(0, 1, preferred=True),
            "preferred hint violates NUMA node allocation",
        ),
        (
            [GI, GI, GI],
            [([0, 1], 1)],
            "1Gi",
            hint(1, 2),
            "preferred hint violates NUMA node allocation",
        ),
    ],
)
def test_what_fits_nowhere_is_refused_in_upstreams_words(
    nodes: list[int],
    holders: list[tuple[list[int], int]],
    wanted: str,
    affinity: Hint,
    problem: str,
) -> None:
    rules = manager(*nodes)
    state = holding(rules, *holders)
    expected = f"Allocate failed due to [memorymanager] {problem}, which is unexpected"
    assert message(tried(rules, state, pod(wanting("main", wanted)), affinity)) == expected


def test_huge_pages_of_a_size_that_the_machine_lacks_are_refused() -> None:
    rules = manager(2 * GI)
    wanted = pod(wanting("main", "1Gi"))
    resources = (wanted.spec and wanted.spec.containers[0].resources) or ResourceRequirements()
    resources.requests = {**(resources.requests or {}), "hugepages-2Mi": "2Mi"}
    assert "no NUMA nodes with enough memory" in message(tried(rules, rules.empty(), wanted))
    resources.requests = {**resources.requests, "hugepages-2Mi": "0"}
    state = placed(rules, rules.empty(), wanted)
    assert held(state, wanted)["main"] == (block([0], GI),)


@pytest.mark.parametrize("memory", ["1500m", "16Ei"])
def test_a_request_that_is_no_number_of_bytes_is_refused(memory: str) -> None:
    rules = manager(2 * GI)
    wanted = pod(wanting("main", memory))
    assert rules.hints(rules.empty(), wanted, wanting("main", memory)) == {}
    assert rules.pod_hints(rules.empty(), wanted) == {}
    assert f"container 'main': memory request {memory} is not" in message(
        tried(rules, rules.empty(), wanted)
    )


@pytest.mark.parametrize(
    "wanted",
    [
        pod(wanting("main", "1Gi"), Container(name="other")),
        pod(wanting("main", "1Gi"), resources=ResourceRequirements(limits={"memory": "1Gi"})),
        pod(Container(name="main")),
    ],
    ids=["burstable", "pod level", "best effort"],
)
def test_pods_of_other_classes_use_any_memory(wanted: Pod) -> None:
    rules = manager(2 * GI)
    state = rules.empty()
    assert tried(rules, state, wanted) is state
    assert rules.pod_hints(state, wanted) == {}
    assert rules.hints(state, wanted, wanting("main", "1Gi")) == {}
    assert memory_nodes(state, uid("uid"), "main") is None


def test_allocating_again_changes_nothing() -> None:
    rules = manager(2 * GI, huge=1)
    state = placed(rules, rules.empty(), ONE)
    assert placed(rules, state, ONE) == state


def test_a_released_pod_leaves_no_trace() -> None:
    rules = manager(GI, GI, GI, huge=1)
    before = holding(rules, ([2], GI))
    wanted = pod(wanting("main", "1536Mi", "2Gi"), wanting("more", "10Mi"), uid="gone")
    state = placed(rules, before, wanted, hint(0, 1))
    assert groups(state)[0] == (0b011, 3)
    after = rules.release(state, uid("gone"))
    assert after == before
    assert after.reusable is None
    assert rules.release(after, uid("gone")) == after


def test_an_init_container_gives_back_what_nobody_took_over() -> None:
    rules = manager(4 * GI)
    wanted = pod(wanting("main", "1Gi"), init=[wanting("setup", "3Gi")])
    state = placed(rules, rules.empty(), wanted)
    assert free(state) == [GI]
    state = release_container(state, uid("uid"), "setup")
    assert free(state) == [3 * GI]
    assert release_container(state, uid("uid"), "setup") is state
    assert release_container(state, uid("other"), "setup") is state
