"""The managers serve the pods that have the QoS class Guaranteed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lightkube.models.core_v1 import Container, Pod, ResourceRequirements

from kubelet_trio.containers import pod_qos
from kubelet_trio.managers.guaranteed import has_pod_level_resources, is_guaranteed
from tests.managers.pods import container, pod, sidecar

_AMOUNTS = st.none() | st.dictionaries(
    st.sampled_from(("cpu", "memory", "example.com/gpu")), st.sampled_from(("0", "1", "1000m", "2"))
)
_BODIES = st.none() | st.builds(ResourceRequirements, requests=_AMOUNTS, limits=_AMOUNTS)
_CONTAINERS = st.lists(st.builds(Container, name=st.just("c"), resources=_BODIES), max_size=3)


@given(st.builds(lambda main, init: pod(*main, init=init), _CONTAINERS, _CONTAINERS))
def test_it_is_what_the_status_shows_as_the_qos_class(candidate: Pod) -> None:
    expected = pod_qos(candidate) == "Guaranteed"
    if candidate.spec is not None and (candidate.spec.containers or candidate.spec.initContainers):
        assert is_guaranteed(candidate) == expected


def test_init_containers_and_sidecars_count() -> None:
    assert is_guaranteed(pod(container("main", "2"), init=[sidecar("proxy", "1")]))
    assert not is_guaranteed(pod(container("main", "2"), init=[Container(name="setup")]))


def test_an_empty_object_of_the_pods_own_makes_it_best_effort() -> None:
    candidate = pod(container("main", "2"), resources=ResourceRequirements())
    assert pod_qos(candidate) == "BestEffort"
    assert not is_guaranteed(candidate)


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        (None, False),
        (ResourceRequirements(), False),
        (ResourceRequirements(requests={"example.com/gpu": "1"}), False),
        (ResourceRequirements(requests={"cpu": "1"}), True),
        (ResourceRequirements(limits={"hugepages-2Mi": "2Mi"}), True),
    ],
)
def test_pod_level_resources_are_those_that_a_pod_can_have(
    resources: ResourceRequirements | None, expected: bool
) -> None:
    assert has_pod_level_resources(pod(resources=resources)) == expected
