"""Devices and exclusive CPUs of a node, as a real API server and kubectl have them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.containerd.devices import MakePlugin, device_pod, given, pid_of, plugins
from tests.harness import (
    Agent,
    Containerd,
    CriClient,
    Json,
    container,
    container_status,
    eventually,
    forever,
    is_ready,
    live_containers,
    pod,
)
from tests.harness.cgroups import allowed_cpus, cpus_of
from tests.harness.control_plane import ControlPlane, kubectl
from tests.harness.device_plugin import node_in_container
from tests.harness.kube import KubeClient

NODE = "devices"  # its own, as every module's that shares the server
NODE_PATH = f"/api/v1/nodes/{NODE}"
ONLINE = cpus_of(Path("/sys/devices/system/cpu/online").read_text())
CONFIG: Json = {
    "nodeStatusUpdateFrequency": "1s",
    "cpuManagerPolicy": "static",
    "reservedSystemCPUs": str(min(ONLINE)),
}


@pytest.fixture(scope="module")
def agent(plane: ControlPlane, kube: KubeClient, make_agent: Callable[..., Agent]) -> Agent:
    arguments = ("--kubeconfig", str(plane.node_kubeconfig(NODE)), "--hostname-override", NODE)
    agent = make_agent(arguments=arguments, config=CONFIG)
    agent.start()
    kube.wait(NODE_PATH, is_ready, what="Ready")
    return agent


@pytest.fixture(scope="module")
def cri(containerd: Containerd) -> Iterator[CriClient]:
    with CriClient(containerd.socket) as client:
        yield client


@pytest.fixture
def make_plugin(agent: Agent, tmp_path: Path) -> Iterator[MakePlugin]:
    with plugins(tmp_path, agent.root, is_grpcio=False) as make:
        yield make


@pytest.fixture
def pods(kube: KubeClient, namespace: str) -> Iterator[str]:
    """The path of pods of a namespace; those of the test are deleted at its end."""
    path = f"/api/v1/namespaces/{namespace}/pods"
    yield path
    left = [found["metadata"] for found in kube.get(path)["items"]]
    for found in left:
        if "deletionTimestamp" not in found:  # else the agent may end it between the two calls
            kube.delete(f"{path}/{found['name']}", gracePeriodSeconds=1)
    for found in left:
        kube.wait_gone(f"{path}/{found['name']}")


def bound(given: Json) -> Json:
    """Return a pod that is on the node already, whatever a scheduler would think of it."""
    spec = {**given["spec"], "nodeName": NODE, "automountServiceAccountToken": False}
    return {**given, "spec": spec}


def wait_amounts(kube: KubeClient, resource: str, *wanted: str) -> None:
    """Wait until the node's capacity and allocatable of a resource are as wanted."""

    def has(node: Json) -> bool:
        status = node["status"]
        return tuple(status[kind].get(resource) for kind in ("capacity", "allocatable")) == wanted

    kube.wait(NODE_PATH, has, what=f"with {resource} {wanted}")


def is_rejected(found: Json) -> bool:
    return bool(found["status"]["phase"] == "Failed")


def rejection(kube: KubeClient, path: str) -> Any:
    status = kube.wait(path, is_rejected, what="rejected")["status"]
    return status["reason"], status["message"]


def test_a_pod_gets_a_device_of_the_node_and_a_pod_too_many_does_not(
    plane: ControlPlane, kube: KubeClient, cri: CriClient, make_plugin: MakePlugin, pods: str
) -> None:
    resource = "example.org/given"
    with make_plugin(resource):
        wait_amounts(kube, resource, "2", "2")
        kube.create(pods, bound(device_pod("both", resource, 2)))
        shown = kube.wait(f"{pods}/both", is_ready, what="Ready")
        assert given(cri, "both") == ["a", "b"]
        for device in ("a", "b"):
            live = live_containers(cri, "both")["main"]
            kind = cri.run(live, "stat", "-c", "%F %t:%T", node_in_container(device))
            assert kind == "character special file 1:3\n"
        # A server that does not know the field, as those before 1.31, leaves it out of what it
        # stores, and takes the rest of the status.
        known = container_status(shown, "main").get("allocatedResourcesStatus", [])
        health = [{one["resourceID"]: one["health"] for one in e["resources"]} for e in known]
        assert health in ([], [{"a": "Healthy", "b": "Healthy"}])

        kube.create(pods, bound(device_pod("late", resource)))
        assert rejection(kube, f"{pods}/late") == (
            "UnexpectedAdmissionError",
            "Pod was rejected: Allocate failed due to requested number of devices unavailable for "
            f"{resource}. Requested: 1, Available: 0, which is unexpected",
        )
        described = kubectl(plane, "describe", "node", NODE)
        assert len(re.findall(rf"{resource}: +2\n", described)) == 2  # capacity, allocatable
        assert re.search(rf"{resource} +2 +2\n", described), described  # requests, limits
        namespace = pods.split("/")[4]
        described = kubectl(plane, "describe", "pod", "late", "-n", namespace)
        assert re.search(r"Reason: +UnexpectedAdmissionError\n", described), described
        assert re.search(rf"{resource}: +1\n", described), described
        assert "requested number of devices unavailable" in described


def test_a_plugin_that_ends_leaves_the_capacity_and_nothing_to_allocate(
    kube: KubeClient, cri: CriClient, make_plugin: MakePlugin, pods: str
) -> None:
    resource = "example.org/ended"
    with make_plugin(resource) as plugin:
        wait_amounts(kube, resource, "2", "2")
        kube.create(pods, bound(device_pod("kept", resource)))
        kube.wait(f"{pods}/kept", is_ready, what="Ready")
        pid = pid_of(cri, "kept")
        plugin.kill()
        wait_amounts(kube, resource, "2", "0")
        kube.create(pods, bound(device_pod("early", resource)))
        assert rejection(kube, f"{pods}/early")[0] == "UnexpectedAdmissionError"
        plugin.start()
        wait_amounts(kube, resource, "2", "2")
        assert pid_of(cri, "kept") == pid


def test_a_new_agent_has_none_until_the_plugin_registers_and_leaves_the_pod_alone(
    agent: Agent, kube: KubeClient, cri: CriClient, make_plugin: MakePlugin, pods: str
) -> None:
    resource = "example.org/anew"
    with make_plugin(resource) as plugin:
        wait_amounts(kube, resource, "2", "2")
        kube.create(pods, bound(device_pod("kept", resource)))
        before = kube.wait(f"{pods}/kept", is_ready, what="Ready")
        (device,), pid = given(cri, "kept"), pid_of(cri, "kept")
        agent.kill()
        plugin.kill()
        agent.start()
        wait_amounts(kube, resource, "0", "0")  # as upstream: it knows the name alone
        plugin.start()
        wait_amounts(kube, resource, "2", "2")
        kube.create(pods, bound(device_pod("other", resource)))
        kube.wait(f"{pods}/other", is_ready, what="Ready")
        assert [*given(cri, "other"), device] in (["a", "b"], ["b", "a"])
        after = kube.get(f"{pods}/kept")
        assert pid_of(cri, "kept") == pid
        for key in ("containerID", "restartCount"):
            shown = [container_status(one, "main")[key] for one in (before, after)]
            assert shown[0] == shown[1]


def whole(name: str, cpus: int) -> Json:
    """Return a Guaranteed pod of whole CPUs."""
    amounts = {"cpu": str(cpus), "memory": "32Mi"}
    main = container("main", forever(), resources={"limits": amounts, "requests": amounts})
    return bound(pod(name, main))


@pytest.mark.skipif(len(ONLINE) < 2, reason="needs a CPU besides the reserved one")
def test_a_pod_has_cpus_of_its_own_until_it_is_deleted(
    agent: Agent, kube: KubeClient, cri: CriClient, pods: str
) -> None:
    def cpus(name: str) -> frozenset[int]:
        return allowed_cpus(cri.container_pid(live_containers(cri, name)["main"]))

    kube.create(pods, bound(pod("shared")))
    kube.create(pods, whole("own", 1))
    for name in ("shared", "own"):
        kube.wait(f"{pods}/{name}", is_ready, what="Ready")
    own = cpus("own")
    assert len(own) == 1
    assert own <= ONLINE - {min(ONLINE)}
    eventually(lambda: cpus("shared") == ONLINE - own, what="the pool is without the CPU")
    kube.create(pods, whole("late", len(ONLINE)))
    assert rejection(kube, f"{pods}/late") == (
        "UnexpectedAdmissionError",
        "Pod was rejected: Allocate failed due to not enough cpus available to satisfy request: "
        f"requested={len(ONLINE)}, available={len(ONLINE) - 2}, which is unexpected",
    )
    kube.delete(f"{pods}/own", gracePeriodSeconds=1)
    eventually(lambda: cpus("shared") == ONLINE, what="the CPU is back in the pool")
