"""That the control plane is as strict as the ones that nodes meet: else the rest shows nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.harness import eventually, pod
from tests.harness.control_plane import ControlPlane, kubectl
from tests.harness.kube import KubeCallError, KubeClient

KubeAs = Callable[..., KubeClient]


def _node(kube_as: KubeAs, name: str) -> KubeClient:
    return kube_as(f"system:node:{name}", "system:nodes")


def test_a_node_reads_the_secrets_of_its_own_pods_alone(
    kube: KubeClient, kube_as: KubeAs, namespace: str
) -> None:
    secrets = f"/api/v1/namespaces/{namespace}/secrets"
    for name in ("own", "other"):
        kube.create(secrets, {"metadata": {"name": name}, "stringData": {"key": name}})
    kube.ensure("/api/v1/nodes", {"metadata": {"name": "reader"}})
    volume = {"name": "own", "secret": {"secretName": "own"}}
    kube.create(
        f"/api/v1/namespaces/{namespace}/pods", pod("uses", nodeName="reader", volumes=[volume])
    )
    node = _node(kube_as, "reader")

    def may_read() -> bool:
        try:
            node.get(f"{secrets}/own")
        except KubeCallError as exc:
            if exc.status != 403:
                raise
            return False
        return True

    # The authoriser learns of the pod by a watch of its own.
    eventually(may_read, 60, "allowed to read its own pod's secret")
    with pytest.raises(KubeCallError) as refused:
        node.get(f"{secrets}/other")
    assert refused.value.status == 403


def test_a_node_changes_no_other(kube: KubeClient, kube_as: KubeAs) -> None:
    kube.ensure("/api/v1/nodes", {"metadata": {"name": "victim"}})
    with pytest.raises(KubeCallError) as refused:
        _node(kube_as, "attacker").patch(
            "/api/v1/nodes/victim/status", {"status": {"phase": "Running"}}
        )
    assert refused.value.status == 403


def test_objects_survive_a_restart_of_the_server(
    plane: ControlPlane, kube: KubeClient, namespace: str
) -> None:
    plane.stop_server()
    try:
        with pytest.raises(OSError, match="Cannot connect"):
            kube.get(f"/api/v1/namespaces/{namespace}")
    finally:
        plane.start_server()
    assert kube.get(f"/api/v1/namespaces/{namespace}")["metadata"]["name"] == namespace


def test_kubectl_talks_to_it(plane: ControlPlane, namespace: str) -> None:
    assert namespace in kubectl(plane, "get", "namespaces", "-o", "name")
