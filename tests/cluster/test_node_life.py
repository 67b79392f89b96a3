"""A node of a real cluster: a real API server, a real containerd, and nobody can tell."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.harness import Agent, Containerd, Json, container, eventually, is_ready, pod
from tests.harness.control_plane import ControlPlane
from tests.harness.kube import KubeClient
from tests.harness.pods import NODE

NODE_PATH = f"/api/v1/nodes/{NODE}"
LEASE_PATH = f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{NODE}"


@pytest.fixture(scope="session")
def containerd() -> Iterator[Containerd]:
    with Containerd() as running:
        yield running


@pytest.fixture(scope="module")
def agent(
    plane: ControlPlane,
    kube: KubeClient,
    containerd: Containerd,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Agent]:
    kube.prepare_namespace("kube-node-lease", plane.authority.certificate)
    arguments = ("--kubeconfig", str(plane.node_kubeconfig(NODE)), "--node-labels=disk=ssd")
    made = Agent(tmp_path_factory.mktemp("agent"), containerd, arguments=arguments)
    try:
        made.start()
        yield made
    finally:
        made.close()


def bound(name: str, *containers: Json, **spec: Any) -> Json:
    return pod(name, *containers, nodeName=NODE, automountServiceAccountToken=False, **spec)


def test_the_node_registers_and_is_ready(agent: Agent, kube: KubeClient) -> None:
    node = kube.wait(NODE_PATH, is_ready, 60, "ready")
    assert node["metadata"]["labels"]["kubernetes.io/hostname"] == NODE
    assert node["metadata"]["labels"]["disk"] == "ssd"
    status = node["status"]
    assert {"cpu", "memory", "pods", "ephemeral-storage"} <= status["capacity"].keys()
    assert status["nodeInfo"]["containerRuntimeVersion"].startswith("containerd://")
    assert {a["type"] for a in status["addresses"]} == {"InternalIP", "Hostname"}
    lease = kube.wait(LEASE_PATH, lambda _: True, 30)
    assert lease["spec"]["holderIdentity"] == NODE
    assert lease["metadata"]["ownerReferences"][0]["uid"] == node["metadata"]["uid"]
    renewed = lease["spec"]["renewTime"]
    kube.wait(LEASE_PATH, lambda found: found["spec"]["renewTime"] != renewed, 60, "renewed")


def test_a_pod_lives_from_its_binding_to_the_end_of_its_object(
    agent: Agent, kube: KubeClient, namespace: str
) -> None:
    pods = f"/api/v1/namespaces/{namespace}/pods"
    kube.create(pods, bound("web"))
    running = kube.wait(f"{pods}/web", is_ready, 60, "ready")
    status = running["status"]
    assert status["phase"] == "Running"
    assert status["podIP"]
    assert status["containerStatuses"][0]["containerID"].startswith("containerd://")
    kube.delete(f"{pods}/web", gracePeriodSeconds=5)
    kube.wait_gone(f"{pods}/web", 60)
    events = kube.get(f"/api/v1/namespaces/{namespace}/events")["items"]
    reasons = {e["reason"] for e in events}
    assert {"Created", "Started", "Killing"} <= reasons


def test_a_pod_that_ends_by_itself_says_how(agent: Agent, kube: KubeClient, namespace: str) -> None:
    pods = f"/api/v1/namespaces/{namespace}/pods"
    kube.create(pods, bound("job", container("main", "exit 3"), restartPolicy="Never"))
    ended = kube.wait(f"{pods}/job", lambda p: p["status"]["phase"] == "Failed", 60, "failed")
    (state,) = (c["state"] for c in ended["status"]["containerStatuses"])
    assert state["terminated"]["exitCode"] == 3
    kube.delete(f"{pods}/job")
    kube.wait_gone(f"{pods}/job", 60)


def test_a_static_pod_has_a_mirror_that_comes_back(agent: Agent, kube: KubeClient) -> None:
    name = f"mirrored-{NODE}"
    path = f"/api/v1/namespaces/default/pods/{name}"
    agent.put(pod("mirrored"))
    first = kube.wait(path, is_ready, 60, "ready")
    marks = first["metadata"]["annotations"]
    assert marks["kubernetes.io/config.mirror"] == marks["kubernetes.io/config.hash"]
    assert first["metadata"]["ownerReferences"][0]["kind"] == "Node"
    kube.delete(path)
    again = kube.wait(
        path, lambda p: p["metadata"]["uid"] != first["metadata"]["uid"] and is_ready(p), 60, "back"
    )
    containers = [p["status"]["containerStatuses"][0]["containerID"] for p in (first, again)]
    assert containers[0] == containers[1]
    agent.drop("mirrored")
    kube.wait_gone(path, 60)


def test_what_runs_survives_the_server_and_the_agent(
    agent: Agent, plane: ControlPlane, kube: KubeClient, namespace: str
) -> None:
    pods = f"/api/v1/namespaces/{namespace}/pods"
    kube.create(pods, bound("stays"))
    before = kube.wait(f"{pods}/stays", is_ready, 60, "ready")["status"]["containerStatuses"]
    plane.stop_server()
    try:
        agent.stop()
        agent.start()
    finally:
        plane.start_server()
    kube.create(pods, bound("after"))
    kube.wait(f"{pods}/after", is_ready, 120, "ready")
    after = kube.get(f"{pods}/stays")["status"]["containerStatuses"]
    assert [c["containerID"] for c in after] == [c["containerID"] for c in before]
    assert [c["restartCount"] for c in after] == [0]
    for name in ("stays", "after"):
        kube.delete(f"{pods}/{name}", gracePeriodSeconds=1)
        kube.wait_gone(f"{pods}/{name}", 60)
    eventually(lambda: is_ready(kube.get(NODE_PATH)), 60, "the node is ready")
