"""What pods need of the features that a node declares."""

from __future__ import annotations

import pytest
from lightkube.models.core_v1 import Pod

from kubelet_trio.config.gates import GATES
from kubelet_trio.model import RESTART_ALL_CONTAINERS
from kubelet_trio.pods.admission.declared_features import declared_features, lacks_features
from tests.pods.make import container, pod

TEXT = "Pod requires node features that are not available: "


def test_what_is_declared_is_sorted_once_each_and_built() -> None:
    found = declared_features()
    assert list(found) == sorted(set(found))
    assert all(GATES[name] for name in found)


@pytest.mark.parametrize(
    "gate", ["ExtendWebSocketsToKubelet", "InPlacePodLevelResourcesVerticalScaling"]
)
def test_what_is_off_is_not_declared(gate: str) -> None:
    assert set(declared_features()) - set(declared_features({gate, "SELinuxMount"})) == {gate}


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
