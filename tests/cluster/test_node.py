"""A node of a real API server: what scheduler, controllers and kubectl see of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.harness import (
    Agent,
    condition,
    container,
    container_status,
    forever,
    is_ready,
    kind,
    pod,
)
from tests.harness.control_plane import ControlPlane, kubectl
from tests.harness.images import BUSYBOX
from tests.harness.kube import KubeClient
from tests.harness.pods import Json

NODE = kind.NODE or "day"  # its own, as every module's that shares the server
NODE_PATH = f"/api/v1/nodes/{NODE}"


@pytest.fixture(scope="module")
def agent(plane: ControlPlane, kube: KubeClient, make_agent: Callable[..., Agent]) -> Agent:
    """The module's shared node, running and Ready."""
    arguments: tuple[str, ...] = ()
    if not kind.NODE:
        kubeconfig = str(plane.node_kubeconfig(NODE))
        arguments = ("--kubeconfig", kubeconfig, "--hostname-override", NODE)
    agent = make_agent(arguments=arguments)
    agent.start()
    kube.wait(NODE_PATH, is_ready, what="Ready")
    return agent


def pods(namespace: str, name: str = "") -> str:
    return f"/api/v1/namespaces/{namespace}/pods" + (f"/{name}" if name else "")


def bound(name: str, *containers: Json, **spec: Any) -> Json:
    """Return a pod that is bound to the node, as a scheduler would."""
    return pod(name, *containers, nodeName=NODE, **spec)


def ended_well(found: Json) -> bool:
    assert found["status"].get("phase") != "Failed", found["status"]
    return bool(found["status"].get("phase") == "Succeeded")


def test_the_node_says_what_it_is_and_renews_its_lease(agent: Agent, kube: KubeClient) -> None:
    node = kube.get(NODE_PATH)
    assert node["metadata"]["labels"]["kubernetes.io/hostname"] == NODE
    assert node["status"]["nodeInfo"]["containerRuntimeVersion"].startswith("containerd://")
    assert {"cpu", "memory", "pods", "ephemeral-storage"} <= node["status"]["allocatable"].keys()
    assert condition(node, "MemoryPressure") == "False"
    lease = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/" + NODE
    first = kube.wait(lease, lambda found: found["spec"].get("renewTime"))
    kube.wait(lease, lambda found: found["spec"]["renewTime"] != first["spec"]["renewTime"])


def test_kubectl_debugs_the_node_and_a_copy_of_a_pod(
    agent: Agent, kube: KubeClient, plane: ControlPlane, namespace: str
) -> None:
    see = (
        "--",
        "sh",
        "-c",
        "test -e /host/proc && test -e /host/etc/passwd && ps | grep -q [k]ubelet-trio",
    )
    kubectl(plane, "-n", namespace, "debug", f"node/{NODE}", f"--image={BUSYBOX}", *see)
    [debugger] = kube.get(pods(namespace))["items"]
    assert debugger["spec"]["hostPID"]
    kube.wait(pods(namespace, debugger["metadata"]["name"]), ended_well)
    kube.create(pods(namespace), bound("web"))
    kube.wait(pods(namespace, "web"), is_ready)
    copy = (
        "--copy-to=copy",
        "--same-node",
        "--share-processes",
        f"--image={BUSYBOX}",
        "-c",
        "look",
    )
    kubectl(plane, "-n", namespace, "debug", "web", *copy, "--", "sleep", "1000")
    copied = kube.wait(pods(namespace, "copy"), is_ready)
    assert {c["name"] for c in copied["status"]["containerStatuses"]} == {"main", "look"}
    for name in ("web", "copy"):
        kube.delete(pods(namespace, name), gracePeriodSeconds=1)


def test_a_pod_is_run_told_of_and_deleted(
    agent: Agent, kube: KubeClient, plane: ControlPlane, namespace: str
) -> None:
    kube.create(pods(namespace), bound("web"))
    kubectl(plane, "-n", namespace, "wait", "--for=condition=Ready", "pod/web", "--timeout=60s")
    status = kube.get(pods(namespace, "web"))["status"]
    assert status["phase"] == "Running"
    assert status["podIP"]
    assert "Running" in kubectl(plane, "-n", namespace, "get", "pods")
    told = kubectl(plane, "-n", namespace, "describe", "pod", "web")
    assert f"Node:             {NODE}/" in told or f"Node:         {NODE}/" in told
    kubectl(plane, "-n", namespace, "delete", "pod", "web", "--timeout=60s")
    assert kube.find(pods(namespace, "web")) is None


def test_kubectl_tells_of_the_node_and_its_pods(
    agent: Agent, kube: KubeClient, plane: ControlPlane, namespace: str
) -> None:
    kube.create(pods(namespace), bound("shown", container("main", forever())))
    kube.wait(pods(namespace, "shown"), is_ready, what="Ready")
    listed = kubectl(plane, "get", "nodes", NODE, "--no-headers").split()
    assert listed[:2] == [NODE, "Ready"]
    assert "kubelet-trio" in listed[-1]
    node = kubectl(plane, "describe", "node", NODE)
    for part in ("KubeletReady", "Allocatable:", "Allocated resources:", "shown"):
        assert part in node
    wide = kubectl(plane, "-n", namespace, "get", "pod", "shown", "-o", "wide", "--no-headers")
    status = kube.get(pods(namespace, "shown"))["status"]
    assert {"1/1", "Running", status["podIP"], NODE} <= set(wide.split())
    told = kubectl(plane, "-n", namespace, "describe", "pod", "shown")
    assert status["containerStatuses"][0]["containerID"] in told
    assert "QoS Class:" in told
    kubectl(plane, "-n", namespace, "delete", "pod", "shown", "--wait=false")
    kubectl(plane, "-n", namespace, "wait", "--for=delete", "pod/shown", "--timeout=60s")
    kube.create(pods(namespace), bound("shown"))
    kube.wait(pods(namespace, "shown"), is_ready, what="Ready, made anew")
    kubectl(plane, "-n", namespace, "delete", "pod", "shown", "--grace-period=0", "--force")
    kube.wait_gone(pods(namespace, "shown"))


def test_events_of_a_pod_reach_the_server(agent: Agent, kube: KubeClient, namespace: str) -> None:
    kube.create(pods(namespace), bound("eventful"))
    kube.wait(pods(namespace, "eventful"), is_ready, what="Ready")

    def reasons(found: Json) -> set[str]:
        return {event["reason"] for event in found["items"]}

    wanted = {"Pulled", "Created", "Started"}
    kube.wait(f"/api/v1/namespaces/{namespace}/events", lambda found: wanted <= reasons(found))


def test_a_container_that_ends_ends_its_pod(agent: Agent, kube: KubeClient, namespace: str) -> None:
    kube.create(pods(namespace), bound("job", container("main", "exit 3"), restartPolicy="Never"))
    found = kube.wait(pods(namespace, "job"), lambda p: p["status"].get("phase") == "Failed")
    assert container_status(found, "main")["state"]["terminated"]["exitCode"] == 3


def test_changes_of_secrets_and_config_maps_reach_volumes(
    agent: Agent, kube: KubeClient, namespace: str
) -> None:
    base = f"/api/v1/namespaces/{namespace}"
    kube.create(f"{base}/configmaps", {"metadata": {"name": "config"}, "data": {"a": "1"}})
    kube.create(f"{base}/secrets", {"metadata": {"name": "secret"}, "stringData": {"b": "1"}})
    script = (
        'until [ "$(cat /config/a)$(cat /secret/b)" = 22 ]; do sleep 0.2; done; '
        'test "$A" = 1'  # what a process was started with does not change
    )
    mounts = [
        {"name": "config", "mountPath": "/config"},
        {"name": "secret", "mountPath": "/secret"},
    ]
    env = [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "config", "key": "a"}}}]
    volumes = [
        {"name": "config", "configMap": {"name": "config"}},
        {"name": "secret", "secret": {"secretName": "secret"}},
    ]
    follower = container("main", script, volumeMounts=mounts, env=env)
    kube.create(
        pods(namespace), bound("follower", follower, volumes=volumes, restartPolicy="Never")
    )
    running = "running"
    kube.wait(
        pods(namespace, "follower"),
        lambda p: running in container_status(p, "main").get("state", {}),
    )
    kube.patch(f"{base}/configmaps/config", {"data": {"a": "2"}})
    kube.patch(f"{base}/secrets/secret", {"stringData": {"b": "2"}})
    kube.wait(pods(namespace, "follower"), ended_well, what="Succeeded")


def test_a_pod_has_a_token_of_its_own_and_knows_the_api_server(
    agent: Agent, kube: KubeClient, namespace: str
) -> None:
    directory = "/var/run/secrets/kubernetes.io/serviceaccount"
    script = (
        f"test -s {directory}/token && test -s {directory}/ca.crt && "
        f'test "$(cat {directory}/namespace)" = {namespace} && test -n "$KUBERNETES_SERVICE_HOST"'
    )
    kube.create(pods(namespace), bound("caller", container("main", script), restartPolicy="Never"))
    kube.wait(pods(namespace, "caller"), ended_well, what="Succeeded")


def test_a_static_pod_has_a_mirror(agent: Agent, kube: KubeClient) -> None:
    agent.put(pod("static"))
    path = pods("default", f"static-{NODE}")
    mirror = kube.wait(path, is_ready, what="Ready")
    assert "kubernetes.io/config.mirror" in mirror["metadata"]["annotations"]
    kube.delete(path, gracePeriodSeconds=0)
    made_again = kube.wait(path, is_ready, what="made again")
    assert made_again["metadata"]["uid"] != mirror["metadata"]["uid"]
    agent.drop("static")
    kube.wait_gone(path)


def test_the_server_may_restart_and_hang(
    agent: Agent, kube: KubeClient, plane: ControlPlane, namespace: str
) -> None:
    kube.create(pods(namespace), bound("before"))
    before = kube.wait(pods(namespace, "before"), is_ready, what="Ready")
    plane.stop_server()
    plane.start_server()
    kube.create(pods(namespace), bound("between"))
    kube.wait(pods(namespace, "between"), is_ready, 120, "Ready")
    plane.hang_server()
    try:
        assert agent.healthz()[0] == 200
    finally:
        plane.resume_server()
    kube.create(pods(namespace), bound("after", container("main", forever())))
    kube.wait(pods(namespace, "after"), is_ready, 120, "Ready")
    after = kube.get(pods(namespace, "before"))
    assert (
        container_status(after, "main")["containerID"]
        == (container_status(before, "main")["containerID"])
    )
    assert container_status(after, "main")["restartCount"] == 0


def test_nothing_was_denied(agent: Agent, plane: ControlPlane) -> None:
    """The last one here: all that the node did above was its right."""
    entries = plane.audit(f"system:node:{NODE}")
    assert entries
    denied = [
        f"{e['verb']} {e['requestURI']}"
        for e in entries
        if e.get("responseStatus", {}).get("code") in (401, 403)
    ]
    # The authoriser learns of a pod by a watch of its own, and may be behind for a moment.
    assert [d for d in denied if "/secrets" not in d and "/configmaps" not in d] == []
