"""What pods need of the features that a node declares."""

from __future__ import annotations

import msgspec
import pytest
from lightkube.models.core_v1 import Pod, ResourceRequirements

from kubelet_trio.config.gates import GATES
from kubelet_trio.model import RESTART_ALL_CONTAINERS, spec
from kubelet_trio.pods.admission.declared_features import DECLARED, lacks_features, lacks_for_update
from tests.pods.make import container, pod, sidecar

SMALL, LARGE = (ResourceRequirements(limits={"cpu": cpu}) for cpu in ("1", "2"))
TEXT = "Pod requires node features that are not available: "


def test_what_is_declared_is_sorted_once_each_and_built() -> None:
    assert list(DECLARED) == sorted(set(DECLARED))
    assert all(GATES[name] for name in DECLARED)


@pytest.mark.parametrize(
    ("of", "missing"),
    [
        (pod(), ""),
        (pod(container("a", "Never", [("In", [1])], RESTART_ALL_CONTAINERS)), ""),
        (pod(hostUsers=False), ""),
        (pod(hostNetwork=True), ""),
        (pod(hostUsers=False, hostNetwork=True), "UserNamespacesHostNetworkSupport"),
    ],
)
def test_a_pod_that_needs_what_is_not_declared_is_rejected(of: Pod, missing: str) -> None:
    found = lacks_features(of, ())
    assert (found is None) == (not missing)
    if found is not None:
        assert (found.reason, found.message) == ("PodFeatureUnsupported", TEXT + missing)


@pytest.mark.parametrize(
    ("before", "after", "missing"),
    [
        (pod(), pod(generation=2), []),
        (pod(resources=SMALL), pod(resources=SMALL), []),
        (
            pod(resources=SMALL),
            pod(resources=LARGE),
            ["InPlacePodLevelResourcesVerticalScaling"],
        ),
        (
            pod(init=[container("i", resources=SMALL)]),
            pod(init=[container("i", resources=LARGE)]),
            ["InPlacePodVerticalScalingInitContainers"],
        ),
        (
            pod(init=[sidecar("i", resources=SMALL)]),
            pod(init=[sidecar("i", resources=LARGE)]),
            [],
        ),
        (
            pod(init=[container("i", resources=SMALL)], resources=SMALL),
            pod(init=[container("i", resources=LARGE)], resources=LARGE),
            [
                "InPlacePodLevelResourcesVerticalScaling",
                "InPlacePodVerticalScalingInitContainers",
            ],
        ),
    ],
)
def test_an_update_that_needs_what_is_not_declared_is_told(
    before: Pod, after: Pod, missing: list[str]
) -> None:
    told = TEXT + ", ".join(missing) if missing else ""
    assert lacks_for_update(before, after) == told


def test_a_pod_as_it_came_is_no_update() -> None:
    of = pod(resources=SMALL)
    copy = msgspec.structs.replace(of, spec=msgspec.structs.replace(spec(of)))
    assert lacks_for_update(of, copy) == ""
