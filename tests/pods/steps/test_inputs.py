"""What a container's config is made of besides its pod."""

from __future__ import annotations

import pytest

from kubelet_trio.containers import NodeSettings
from kubelet_trio.pods.steps.inputs import pod_facts
from tests.pods.make import pod


# TestMakeEnvironmentVariables and TestSortPodIPs: a pod's variables tell what its status shows.
@pytest.mark.parametrize(
    ("has", "node", "expected"),
    [
        pytest.param(("1.2.3.4", "fd00::6"), ("10.0.0.1",), ("1.2.3.4", "fd00::6"), id="as given"),
        pytest.param(("fd00::6", "1.2.3.4"), ("10.0.0.1",), ("1.2.3.4", "fd00::6"), id="reverse"),
        pytest.param(("1.2.3.4", "fd00::6"), ("fd00::1",), ("fd00::6", "1.2.3.4"), id="the node"),
        pytest.param(
            ("1.2.3.4", "192.168.1.1.", "fd00::6"),
            ("10.0.0.1",),
            ("1.2.3.4", "fd00::6"),
            id="one is no address",
        ),
        pytest.param(("1.2.3.4", "5.6.7.8"), ("10.0.0.1",), ("1.2.3.4",), id="one of a family"),
    ],
)
def test_a_pod_is_told_the_addresses_of_its_status(
    has: tuple[str, ...], node: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    settings = NodeSettings("node", "node", host_ips=node)
    assert pod_facts(pod(), settings, has).pod_ips == expected


def test_on_the_hosts_network_a_pod_is_told_the_nodes() -> None:
    settings = NodeSettings("node", "node", host_ips=("fd00::1", "10.0.0.1"))
    assert pod_facts(pod(hostNetwork=True), settings, ()).pod_ips == settings.host_ips
