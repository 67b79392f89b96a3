"""Which resources of a pod may change, and which of two states of a pod has what."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lightkube.models.core_v1 import Container, Pod, ResourceRequirements

from kubelet_trio.containers import (
    differs,
    effective_resources,
    increases_requests,
    with_allocated,
    with_larger,
)
from kubelet_trio.model import spec
from tests.pods.make import container, pod

Amounts = dict[str, str]


def resources(requests: Amounts | None = None, limits: Amounts | None = None) -> Any:
    return ResourceRequirements(requests=requests, limits=limits)


def web(requests: Amounts | None = None, limits: Amounts | None = None, **more: Any) -> Container:
    return container("web", resources=resources(requests, limits), **more)


def test_only_cpu_and_memory_are_allocated() -> None:
    desired = pod(web({"cpu": "2", "memory": "2Gi", "example.org/gpu": "2"}, {"cpu": "4"}))
    before = pod(web({"cpu": "1", "memory": "1Gi", "example.org/gpu": "1"}, {"memory": "3Gi"}))
    found = spec(with_allocated(desired, before)).containers[0].resources
    assert found == resources(
        {"cpu": "1", "memory": "1Gi", "example.org/gpu": "2"}, {"memory": "3Gi"}
    )


def test_all_else_is_as_the_source_wants_it() -> None:
    desired = pod(web({"cpu": "2"}, workingDir="/new"), "new", generation=2)
    before = pod(web({"cpu": "1"}), generation=1)
    merged = with_allocated(desired, before)
    assert merged.metadata == desired.metadata
    first, second = spec(merged).containers
    assert (first.workingDir, first.resources) == ("/new", resources({"cpu": "1"}))
    assert second == container("new")


def test_nothing_changes_where_nothing_differs() -> None:
    desired = pod(web({"cpu": "1"}), init=["prepare"])
    assert with_allocated(desired, pod(web({"cpu": "1"}), init=["prepare"])) is desired


def test_the_pods_own_resources_are_allocated_too() -> None:
    desired = pod(web(), resources=resources({"cpu": "2"}, {"cpu": "4"}))
    before = pod(web(), resources=resources({"cpu": "1"}, {"cpu": "4"}))
    assert with_allocated(desired, before) == before
    assert differs(desired, before)


def test_resources_that_a_pod_is_given_by_a_resize_are_not_allocated_as_an_empty_object() -> None:
    """An empty object makes a pod BestEffort, whatever its containers request."""
    desired = pod(web({"cpu": "1"}), resources=resources({"cpu": "2"}, {"cpu": "4"}))
    before = pod(web({"cpu": "1"}))
    assert with_allocated(desired, before) == before
    assert differs(desired, before)
    empty = pod(web({"cpu": "1"}), resources=resources())
    assert with_allocated(desired, empty) == empty


@pytest.mark.parametrize(
    ("one", "other", "is_different"),
    [
        ({"cpu": "1"}, {"cpu": "1000m"}, False),
        ({"cpu": "1"}, {"cpu": "1001m"}, True),
        ({"cpu": "0"}, None, False),
        ({"memory": "1Gi"}, None, True),
        ({"ephemeral-storage": "1Gi"}, None, False),
    ],
)
def test_quantities_are_compared_by_value(
    one: Amounts, other: Amounts | None, is_different: bool
) -> None:
    assert differs(pod(web(one)), pod(web(other))) is is_different
    assert differs(pod("main", init=[web(one)]), pod("main", init=[web(other)])) is is_different


def test_a_container_inherits_the_pods_limit() -> None:
    owner = pod(web({"cpu": "1"}, {"cpu": "2"}), resources=resources(None, {"memory": "1Gi"}))
    found = effective_resources(owner, spec(owner).containers[0])
    assert found == resources({"cpu": "1"}, {"cpu": "2", "memory": "1Gi"})


AMOUNTS = st.fixed_dictionaries(
    {},
    optional={
        "cpu": st.sampled_from(["0", "100m", "1"]),
        "memory": st.sampled_from(["1Mi", "2Gi"]),
    },
)
PODS = st.builds(
    lambda one, two, side: pod(
        web(one),
        container("two", resources=resources(two, two)),
        init=[container("side", "Always", resources=resources(side))],
    ),
    AMOUNTS,
    AMOUNTS,
    AMOUNTS,
)


@given(PODS, PODS)
def test_an_allocation_is_what_was_allocated(one: Pod, other: Pod) -> None:
    merged = with_allocated(one, other)
    assert not differs(merged, other)
    assert not differs(with_allocated(merged, one), one)


@given(PODS, PODS)
def test_the_larger_of_two_is_below_neither(one: Pod, other: Pod) -> None:
    both = with_larger(one, other)
    assert not increases_requests(both, one)
    assert not increases_requests(both, other)
    assert not differs(both, with_larger(other, one))
