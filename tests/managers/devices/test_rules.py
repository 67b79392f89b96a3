"""Which devices containers get, and where they could be taken from."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lightkube.models.core_v1 import Container, Pod

from kubelet_trio.managers.devices.rules import DeviceRules
from kubelet_trio.managers.devices.types import DeviceShare, DeviceState, Listed
from kubelet_trio.managers.types import ANYWHERE, Hint, Manager, Refusal, mask_of
from kubelet_trio.model import PodUid, pod_containers
from tests.harness.linear import steps
from tests.managers.devices.pods import GPU, asking, listed, pod_of

UID = PodUid("p")


def rules(devices: Listed | None, nodes: int = 0b11) -> DeviceRules:
    return DeviceRules({} if devices is None else {GPU: devices}, nodes)


def admitted(manager: Manager[DeviceState], pod: Pod, state: DeviceState) -> DeviceState | Refusal:
    """Allocate for all containers of a pod, as admission does, without NUMA nodes."""
    for container in pod_containers(pod):
        outcome = manager.allocate(state, pod, container.spec, ANYWHERE)
        if isinstance(outcome, Refusal):
            return outcome
        state = outcome
    return state


def holding(name: str, *ids: str, uid: str = "p", state: DeviceState | None = None) -> DeviceState:
    state = state or DeviceState()
    return state.with_share(PodUid(uid), name, GPU, DeviceShare({-1: ids}, b""))


def ids_of(outcome: DeviceState | Refusal, container: str, uid: str = "p") -> list[str]:
    assert isinstance(outcome, DeviceState), outcome
    shares = outcome.shares(PodUid(uid), container)
    return sorted(shares[GPU].ids) if GPU in shares else []


def refused(outcome: DeviceState | Refusal) -> str:
    assert isinstance(outcome, Refusal), outcome
    assert outcome.reason == "UnexpectedAdmissionError"
    return outcome.message


def test_a_container_gets_as_many_healthy_devices_as_it_asks_for() -> None:
    manager = rules(listed(None, None, None, unhealthy=["d0"]))
    assert ids_of(admitted(manager, pod_of(asking("c", 2)), DeviceState()), "c") == ["d1", "d2"]


def test_two_pods_never_get_the_same_device() -> None:
    manager = rules(listed(None, None))
    state = holding("c", "d0", uid="q")
    assert ids_of(admitted(manager, pod_of(asking("c")), state), "c") == ["d1"]


def test_an_unknown_resource_is_no_business_of_devices() -> None:
    state = DeviceState()
    pod = pod_of(asking("c"))
    assert admitted(rules(None), pod, state) is state
    assert rules(None).hints(state, pod, asking("c")) == {}
    assert rules(None).pod_hints(state, pod) == {}


@pytest.mark.parametrize(
    ("devices", "state", "count", "message"),
    [
        pytest.param(
            listed(None, None, None),
            holding("c", "d0", uid="q"),
            3,
            "requested number of devices unavailable for example.com/gpu. "
            "Requested: 3, Available: 2",
            id="too few",
        ),
        pytest.param(
            listed(None, unhealthy=["d0"]),
            DeviceState(),
            1,
            "no healthy devices present; cannot allocate unhealthy devices example.com/gpu",
            id="none healthy",
        ),
        pytest.param(
            Listed(listed(None).devices, is_served=False),
            DeviceState(),
            1,
            "no healthy devices present; cannot allocate unhealthy devices example.com/gpu",
            id="plugin gone",
        ),
        pytest.param(
            None,
            holding("c", "d0"),
            1,
            "cannot allocate unregistered device example.com/gpu",
            id="plugin never came back",
        ),
        pytest.param(
            listed(None, None, unhealthy=["d0"]),
            holding("c", "d0"),
            1,
            "previously allocated devices are no longer healthy; "
            "cannot allocate unhealthy devices example.com/gpu",
            id="its device became unhealthy",
        ),
        pytest.param(
            listed(None, None),
            holding("c", "d0"),
            2,
            'pod "p" container "c" changed request for resource "example.com/gpu" from 1 to 2',
            id="another request",
        ),
    ],
)
def test_a_refusal_is_in_the_go_kubelets_words(
    devices: Listed | None, state: DeviceState, count: int, message: str
) -> None:
    outcome = admitted(rules(devices), pod_of(asking("c", count)), state)
    assert refused(outcome) == f"Allocate failed due to {message}, which is unexpected"


def test_a_container_that_runs_is_not_admitted_anew_against_its_devices() -> None:
    # kubernetes issues 109595 and 118559.
    manager = DeviceRules({GPU: listed(None, unhealthy=["d0"])}, 1, lambda _uid, name: name == "c")
    state = holding("c", "d0")
    assert admitted(manager, pod_of(asking("c")), state) is state
    # Without a checkpoint nobody knows what it has.
    assert admitted(manager, pod_of(asking("c")), DeviceState()) == DeviceState()


def test_what_a_container_has_is_not_allocated_again() -> None:
    manager, state = rules(listed(None, None)), holding("c", "d1")
    assert admitted(manager, pod_of(asking("c")), state) is state


def test_main_containers_take_over_the_devices_of_init_containers() -> None:
    pod = pod_of(asking("a", 2), asking("b", 1), inits=[asking("i", 1), asking("j", 2)])
    outcome = admitted(rules(listed(*[None] * 4)), pod, DeviceState())
    assert ids_of(outcome, "i") == ["d0"]
    assert ids_of(outcome, "j") == ["d0", "d1"]
    assert ids_of(outcome, "a") == ["d0", "d1"]
    assert ids_of(outcome, "b") == ["d2"]


def test_an_init_container_is_confirmed_with_devices_that_others_take_over() -> None:
    pod = pod_of(asking("a", 2), inits=[asking("i", 1), asking("j", 2)])
    manager = rules(listed(None, None))
    state = admitted(manager, pod, DeviceState())
    assert isinstance(state, DeviceState)
    for container in (asking("i", 1), asking("j", 2), asking("a", 2)):
        choice = manager.choose(state, pod, container, GPU)
        assert not isinstance(choice, str)
        assert list(choice.ids) == ids_of(state, container.name)


def test_sidecars_keep_their_devices() -> None:
    pod = pod_of(asking("a"), inits=[asking("i"), asking("s", sidecar=True), asking("j")])
    outcome = admitted(rules(listed(*[None] * 4)), pod, DeviceState())
    assert ids_of(outcome, "i") == ids_of(outcome, "s") == ["d0"]  # i has ended before s starts
    assert ids_of(outcome, "j") == ids_of(outcome, "a") == ["d1"]


def test_an_unhealthy_device_of_an_init_container_is_not_taken_over() -> None:
    pod = pod_of(asking("a"), inits=[asking("i")])
    manager = rules(listed(None, None, unhealthy=["d0"]))
    outcome = manager.allocate(holding("i", "d0"), pod, asking("a"), ANYWHERE)
    assert ids_of(outcome, "a") == ["d1"]


def test_a_resource_claim_takes_precedence() -> None:
    from lightkube.models.core_v1 import (
        ContainerExtendedResourceRequest,
        PodExtendedResourceClaimStatus,
        PodStatus,
    )

    pod = pod_of(asking("c"))
    mapping = ContainerExtendedResourceRequest(containerName="c", resourceName=GPU, requestName="r")
    pod.status = PodStatus(
        extendedResourceClaimStatus=PodExtendedResourceClaimStatus(
            requestMappings=[mapping], resourceClaimName="x"
        )
    )
    assert admitted(rules(listed(None)), pod, DeviceState()) == DeviceState()


@pytest.mark.parametrize(
    ("nodes", "affinity", "count", "expected"),
    [
        ((0, 1, 0, 1), 0b10, 2, ["d1", "d3"]),
        ((0, 1, 0, 1), 0b10, 1, ["d1"]),
        ((0, 1, 0, 1), 0b10, 3, ["d0", "d1", "d3"]),
        ((None, 0, 1), 0b10, 2, ["d1", "d2"]),  # those near other nodes before those near none
        (((0, 1), 0, 1), 0b10, 1, ["d0"]),
        ((None, None), 0b10, 1, ["d0"]),
        ((0, 1), None, 1, ["d0"]),
    ],
)
def test_devices_near_the_wanted_nodes_come_first(
    nodes: tuple[int | None, ...], affinity: int | None, count: int, expected: list[str]
) -> None:
    container = asking("c", count)
    hint = Hint(affinity, preferred=True)
    outcome = rules(listed(*nodes)).allocate(DeviceState(), pod_of(container), container, hint)
    assert ids_of(outcome, "c") == expected


def hints_of(devices: Listed, container: Container, state: DeviceState | None = None) -> object:
    manager = rules(devices)
    return manager.hints(state or DeviceState(), pod_of(container), container)[GPU]


def test_devices_without_nodes_have_no_preference() -> None:
    assert hints_of(listed(None, None), asking("c")) is None


@pytest.mark.parametrize(
    ("nodes", "count", "expected"),
    [
        ((0, 1), 1, [(0b01, True), (0b10, True), (0b11, False)]),
        ((0, 1), 2, [(0b11, True)]),
        ((0, 0, 1), 2, [(0b01, True), (0b11, False)]),
        ((0, None), 1, [(0b01, True)]),  # nodes without devices are no places
        ((0, None), 2, []),
        (((0, 1),), 1, [(0b01, True), (0b10, True), (0b11, False)]),
        ((0, 7), 1, [(0b01, True)]),  # the machine has no node 7
        ((1 << 40,), 1, []),
    ],
)
def test_hints_are_the_sets_of_nodes_with_enough_devices(
    nodes: tuple[int, ...], count: int, expected: list[tuple[int, bool]]
) -> None:
    hints = hints_of(listed(*nodes), asking("c", count))
    assert hints == tuple(Hint(mask, preferred=narrow) for mask, narrow in expected)


def test_used_devices_make_a_hint_worse_and_not_another_preferred() -> None:
    state = holding("c", "d0", uid="q")
    # Both devices of node 0 would do on one node: across two nodes is not preferred.
    assert hints_of(listed(0, 0, 1), asking("c", 2), state) == (Hint(0b11, preferred=False),)


def test_a_container_that_has_its_devices_gets_their_hints() -> None:
    state = holding("c", "d1")
    hints = (Hint(0b10, preferred=True), Hint(0b11, preferred=False))
    assert hints_of(listed(0, 1), asking("c"), state) == hints
    assert hints_of(listed(0, 1), asking("c", 2), state) == ()


def test_too_few_devices_have_no_place() -> None:
    assert hints_of(listed(0, 1, unhealthy=["d1"]), asking("c", 2)) == ()


def test_devices_of_init_containers_must_be_in_the_place() -> None:
    pod, state = pod_of(asking("a"), inits=[asking("i")]), holding("i", "d1")
    hints = rules(listed(0, 1)).hints(state, pod, asking("a"))[GPU]
    assert hints == (Hint(0b10, preferred=True), Hint(0b11, preferred=False))


def test_a_pod_needs_the_most_that_it_has_at_one_time() -> None:
    pod = pod_of(
        asking("a"),
        asking("b"),
        inits=[asking("i", 4), asking("s", sidecar=True), asking("j", 2)],
    )
    # i: 4; s and j: 3; s, a and b: 3.
    manager = rules(listed(0, 0, 0, 0, 1))
    hints = manager.pod_hints(DeviceState(), pod)[GPU]
    assert hints == (Hint(0b01, preferred=True), Hint(0b11, preferred=False))


def test_a_pod_gives_back_all_of_its_devices() -> None:
    state = holding("c", "d0", state=holding("c", "d1", uid="q"))
    assert rules(listed(None, None)).release(state, UID) == holding("c", "d1", uid="q")


placed = st.lists(
    st.one_of(st.none(), st.lists(st.integers(0, 3), min_size=1, max_size=2, unique=True)),
    min_size=1,
    max_size=7,
).map(lambda nodes: listed(*(None if n is None else tuple(n) for n in nodes)))


@given(placed, st.sets(st.integers(0, 6)), st.integers(1, 4))
def test_hints_are_those_of_a_search_through_all_sets(
    devices: Listed, used: set[int], count: int
) -> None:
    taken = {f"d{n}" for n in used} & devices.devices.keys()
    state = holding("c", *sorted(taken), uid="q")
    found = DeviceRules({GPU: devices}, 0b1111).hints(state, pod_of(), asking("c", count))[GPU]
    if not devices.has_nodes:
        assert found is None
        return
    near = sorted({node for d in devices.devices.values() for node in d.nodes})
    expected, enough = [], []
    for width in range(1, len(near) + 1):
        for nodes in combinations(near, width):
            there = {d.id for d in devices.devices.values() if {*d.nodes} & {*nodes}}
            if len(there) >= count:
                enough.append(width)
            if len(there - taken) >= count:
                expected.append((mask_of(nodes), width))
    best = min(enough, default=len(near))
    assert found == tuple(Hint(mask, preferred=width == best) for mask, width in expected)


def test_nodes_that_a_plugin_makes_up_cost_no_more_than_real_ones() -> None:
    def hints(devices: Listed) -> object:
        return DeviceRules({GPU: devices}, 0xFF).hints(DeviceState(), pod_of(), asking("c", 2))

    honest = listed(*((n % 8,) for n in range(500)))
    hostile = listed(*((n % 8, 8 + n) for n in range(500)))
    assert hints(hostile) == hints(honest)
    assert steps(hints, hostile) < 2 * steps(hints, honest)


requests = st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 3)), max_size=12)


@given(placed, requests, st.sets(st.integers(0, 6)), st.integers(0, 15))
def test_no_device_is_used_twice_nor_more_than_asked_for_nor_unhealthy(
    devices: Listed, asked: list[tuple[str, int]], bad: set[int], affinity: int
) -> None:
    nodes = [d.nodes or None for d in devices.devices.values()]
    devices = listed(*nodes, unhealthy=[f"d{n}" for n in bad])
    manager, state = DeviceRules({GPU: devices}, 0b1111), DeviceState()
    for uid, count in asked:
        container = asking("c", count)
        hint = Hint(affinity or None, preferred=True)
        before = state
        outcome = manager.allocate(state, pod_of(container, uid=uid), container, hint)
        again = manager.allocate(state, pod_of(container, uid=uid), container, hint)
        assert outcome == again  # the same answer to the same question
        if isinstance(outcome, Refusal):
            continue
        state = outcome
        held = ids_of(state, "c", uid)
        assert len(held) == count
        assert uid in before.pods or set(held) <= devices.healthy
    owned = [name for _, _, _, share in state.each() for name in share.ids]
    assert len(owned) == len(set(owned))
    for uid in list(state.pods):
        state = manager.release(state, uid)
    assert state == DeviceState()
