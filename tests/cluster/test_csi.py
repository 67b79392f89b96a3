"""CSI volumes on a node of a real API server, with an attach controller and a driver of ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kubelet_trio.testing.csi import calls
from tests.harness import Agent, container, eventually, forever, is_ready, pod
from tests.harness.attach_controller import ATTACHMENTS, AttachController
from tests.harness.control_plane import ControlPlane, kubectl
from tests.harness.csi import CsiDriver, DriverConfig
from tests.harness.kube import KubeClient
from tests.harness.pods import Json

NODE = "storage"  # its own, as every module's that shares the server
NODE_PATH = f"/api/v1/nodes/{NODE}"
CSI_NODE = f"/apis/storage.k8s.io/v1/csinodes/{NODE}"
DRIVERS = "/apis/storage.k8s.io/v1/csidrivers"
NODE_ID = "csi.volume.kubernetes.io/nodeid"
DISK = DriverConfig(
    "attached.csi.example.org",
    node_id="machine-7",
    max_volumes=5,
    topology={"topology.csi.example.org/rack": "r1"},
)


@pytest.fixture(scope="module")
def agent(plane: ControlPlane, kube: KubeClient, make_agent: Callable[..., Agent]) -> Agent:
    arguments = ("--kubeconfig", str(plane.node_kubeconfig(NODE)), "--hostname-override", NODE)
    agent = make_agent(arguments=arguments)
    agent.start()
    kube.wait(NODE_PATH, is_ready, what="Ready")
    return agent


@pytest.fixture(scope="module")
def driver(
    agent: Agent, kube: KubeClient, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[CsiDriver]:
    kube.create(DRIVERS, {"metadata": {"name": DISK.name}, "spec": {"attachRequired": True}})
    with CsiDriver(tmp_path_factory.mktemp("driver"), agent.root, DISK) as running:
        kube.wait(CSI_NODE, lambda found: found["spec"]["drivers"], what="with the driver")
        yield running


@pytest.fixture
def controller(plane: ControlPlane) -> Iterator[AttachController]:
    with (
        KubeClient(plane.admin_kubeconfig) as own,
        AttachController(own, NODE) as running,
    ):
        yield running


def pods(namespace: str, name: str = "") -> str:
    return f"/api/v1/namespaces/{namespace}/pods" + (f"/{name}" if name else "")


def provide(kube: KubeClient, namespace: str, name: str, handle: str = "", **spec: Any) -> None:
    """Create a claim and its persistent volume, and bind them, as the volume controller does."""
    claims = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims"
    amount = {"storage": "1Gi"}
    modes = spec.pop("accessModes", ["ReadWriteOnce"])
    claim = kube.create(
        claims,
        {
            "metadata": {"name": name},
            "spec": {
                "accessModes": modes,
                "volumeName": f"{namespace}-{name}",
                "storageClassName": "",
                "resources": {"requests": amount},
            },
        },
    )
    owner = {"kind": "PersistentVolumeClaim", "namespace": namespace, "name": name}
    source = {"driver": DISK.name, "volumeHandle": handle or f"dir-{namespace}-{name}", **spec}
    kube.create(
        "/api/v1/persistentvolumes",
        {
            "metadata": {"name": f"{namespace}-{name}"},
            "spec": {
                "capacity": amount,
                "accessModes": modes,
                "csi": source,
                "claimRef": {**owner, "uid": claim["metadata"]["uid"]},
                "persistentVolumeReclaimPolicy": "Retain",
            },
        },
    )
    status = {"phase": "Bound", "accessModes": modes, "capacity": amount}
    kube.patch(f"{claims}/{name}/status", {"status": status})


def using(name: str, claim: str, *command: str) -> Json:
    """Return a pod of the node that mounts a claim at /data."""
    mounts = [{"name": "data", "mountPath": "/data"}]
    main = container("main", " && ".join([*command, forever()]), volumeMounts=mounts)
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": claim}}
    return pod(name, main, nodeName=NODE, volumes=[volume])


def end(kube: KubeClient, controller: AttachController, namespace: str, name: str) -> None:
    """Delete a pod, and wait until the controller has detached its volumes."""
    kube.delete(pods(namespace, name), gracePeriodSeconds=1)
    kube.wait_gone(pods(namespace, name))
    eventually(lambda: controller.attached() == [], 60, "detached")


def unique(namespace: str, name: str) -> str:
    return f"kubernetes.io/csi/{DISK.name}^dir-{namespace}-{name}"


def events(kube: KubeClient, namespace: str, name: str) -> list[tuple[str, str]]:
    found = kube.get(f"/api/v1/namespaces/{namespace}/events")["items"]
    return [(e["reason"], e["message"]) for e in found if e["involvedObject"]["name"] == name]


def test_the_node_tells_of_its_drivers(agent: Agent, kube: KubeClient, driver: CsiDriver) -> None:
    found = kube.get(CSI_NODE)
    node = kube.get(NODE_PATH)
    [owner] = found["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("Node", node["metadata"]["uid"])
    assert found["spec"]["drivers"] == [
        {
            "name": DISK.name,
            "nodeID": "machine-7",
            "topologyKeys": ["topology.csi.example.org/rack"],
            "allocatable": {"count": 5},
        }
    ]
    assert node["metadata"]["annotations"][NODE_ID] == f'{{"{DISK.name}":"machine-7"}}'
    assert node["metadata"]["labels"]["topology.csi.example.org/rack"] == "r1"


def test_a_volume_is_attached_mounted_and_detached_in_order(
    agent: Agent,
    kube: KubeClient,
    plane: ControlPlane,
    driver: CsiDriver,
    controller: AttachController,
    namespace: str,
) -> None:
    provide(kube, namespace, "data")
    name = unique(namespace, "data")
    kube.create(pods(namespace), using("writer", "data", "echo kept > /data/file"))
    kube.wait(pods(namespace, "writer"), is_ready, what="Ready")
    assert controller.in_use() == [name]
    assert controller.attached() == [name]
    [stage] = driver.calls(calls.STAGE, f"dir-{namespace}-data")
    assert stage["publish_context"] == {"slot": f"slot-of-dir-{namespace}-data"}

    # A restarted agent has the volume in use from its first status on.
    agent.kill()
    agent.start()
    kube.wait(NODE_PATH, is_ready, what="Ready")
    assert controller.in_use() == [name]
    assert len(driver.calls(calls.STAGE, f"dir-{namespace}-data")) == 1

    end(kube, controller, namespace, "writer")
    # The node's status shows a detach a moment before the controller's thread records it.
    eventually(lambda: controller.history == [("attach", name), ("detach", name)], 10, "recorded")
    driver.wait_clean()
    assert kube.get(ATTACHMENTS)["items"] == []

    kube.create(pods(namespace), using("reader", "data", "grep kept /data/file"))
    kube.wait(pods(namespace, "reader"), is_ready, what="Ready")
    kubectl(plane, "-n", namespace, "delete", "pod", "reader", "--timeout=60s")
    eventually(lambda: controller.attached() == [], 60, "detached")
    driver.wait_clean()


def test_a_volume_that_cannot_be_attached_is_waited_for(
    agent: Agent,
    kube: KubeClient,
    driver: CsiDriver,
    controller: AttachController,
    namespace: str,
) -> None:
    controller.refuses = "no slot is free"
    provide(kube, namespace, "late")
    kube.create(pods(namespace), using("late", "late"))
    eventually(lambda: controller.in_use() == [unique(namespace, "late")], 60, "in use")
    assert driver.calls(calls.STAGE, f"dir-{namespace}-late") == []
    controller.refuses = ""
    kube.wait(pods(namespace, "late"), is_ready, what="Ready")
    end(kube, controller, namespace, "late")


def test_a_secret_of_the_volume_reaches_the_driver(
    agent: Agent,
    kube: KubeClient,
    driver: CsiDriver,
    controller: AttachController,
    namespace: str,
) -> None:
    secret = {"metadata": {"name": "stage"}, "stringData": {"password": "opensesame"}}
    kube.create(f"/api/v1/namespaces/{namespace}/secrets", secret)
    reference = {"name": "stage", "namespace": namespace}
    provide(kube, namespace, "locked", nodeStageSecretRef=reference)
    kube.create(pods(namespace), using("locked", "locked"))
    kube.wait(pods(namespace, "locked"), is_ready, what="Ready")
    end(kube, controller, namespace, "locked")
    assert not [e for e in events(kube, namespace, "locked") if "opensesame" in e[1]]
    driver.wait_clean()


def test_a_driver_that_goes_is_taken_out_and_comes_back(
    agent: Agent, kube: KubeClient, driver: CsiDriver
) -> None:
    driver.kill()
    driver.remove_sockets()
    kube.wait(CSI_NODE, lambda found: not found["spec"]["drivers"], what="without drivers")
    kube.wait(NODE_PATH, lambda node: NODE_ID not in node["metadata"].get("annotations", {}))
    driver.start()
    kube.wait(CSI_NODE, lambda found: found["spec"]["drivers"], what="with the driver")
    # Deleted by somebody, it comes back with the next driver.
    kube.delete(CSI_NODE)
    driver.register_again()
    kube.wait(CSI_NODE, lambda found: found["spec"]["drivers"], what="with the driver")


def test_drivers_of_an_agent_that_ends_stay_registered(
    agent: Agent, kube: KubeClient, driver: CsiDriver
) -> None:
    before = kube.get(CSI_NODE)["spec"]
    assert agent.stop() == 0
    assert kube.get(CSI_NODE)["spec"] == before
    agent.start()
    kube.wait(NODE_PATH, is_ready, what="Ready")
    assert kube.get(CSI_NODE)["spec"] == before
