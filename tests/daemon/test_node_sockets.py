"""Which sockets the daemon serves to programs of the node."""

from __future__ import annotations

import pytest

from kubelet_trio.agent import NodeSocketSettings
from kubelet_trio.config import KubeletConfiguration
from kubelet_trio.daemon.settings import node_socket_settings


@pytest.mark.parametrize(
    ("gates", "expected"),
    [
        ({}, NodeSocketSettings(pod_resources=True)),
        ({"PodsAPI": True}, NodeSocketSettings(pod_resources=True, pods_api=True)),
        (
            {"KubeletPodResourcesListUseActivePods": False},
            NodeSocketSettings(pod_resources=True, use_active_pods=False),
        ),
    ],
)
def test_the_gates_decide_what_is_served(
    gates: dict[str, bool], expected: NodeSocketSettings
) -> None:
    assert node_socket_settings(KubeletConfiguration(feature_gates=gates)) == expected
