"""A node goes from the Go kubelet to this agent and back: no container is another.

Its pods are a static one and one of the API server, with volumes of four kinds, an init container
that has ended, a container that has crashed once, and probes.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from kubelet_trio.cri import v1
from tests.harness import (
    Agent,
    CriClient,
    Json,
    container,
    container_status,
    eventually,
    forever,
    is_ready,
    pod,
)
from tests.harness.control_plane import ControlPlane
from tests.harness.go_kubelet import GoKubelet, has_kubelet, watch
from tests.harness.kube import KubeClient
from tests.harness.machine import PATIENCE

pytestmark = pytest.mark.skipif(not has_kubelet(), reason="no kubelet beside kube-apiserver")

NODE = "migrant"
LOOKED = 12.0  # seconds of each: more than one full sync of its pods
STATIC = f"fixed-{NODE}"
MIRROR = "kubernetes.io/config.mirror"
# Fails the first time, by what an emptyDir remembers.
CRASHES = "test -e /scratch/once || { touch /scratch/once; exit 3; }\n"


def workload(name: str, host: Path, given: Sequence[Json] = (), **spec: Any) -> Json:
    """Return a pod with one of everything that both sorts of pods can have."""
    scratch = {"name": "scratch", "mountPath": "/scratch"}
    on_host = {"name": "host", "mountPath": "/host"}
    probe = {"exec": {"command": ["test", "-e", "/scratch/once"]}, "periodSeconds": 1}
    main = container(
        "main",
        CRASHES + forever(),
        volumeMounts=[scratch, on_host],
        readinessProbe=probe,
        livenessProbe={**probe, "initialDelaySeconds": 5},
        resources={"requests": {"cpu": "10m", "memory": "16Mi"}},
        ports=[{"containerPort": 8080}],
    )
    first = container("first", "touch /scratch/first", volumeMounts=[scratch])
    volumes = [
        {"name": "scratch", "emptyDir": {}},
        {"name": "host", "hostPath": {"path": str(host), "type": "DirectoryOrCreate"}},
        *given,
    ]
    return pod(name, main, initContainers=[first], volumes=volumes, **spec)


class Migrant:
    """The node, its pods, and what runs of them."""

    def __init__(self, agent: Agent, go: GoKubelet, kube: KubeClient, namespace: str) -> None:
        self.agent, self.go, self.kube = agent, go, kube
        self.paths = {
            STATIC: f"/api/v1/namespaces/default/pods/{STATIC}",
            "plain": f"/api/v1/namespaces/{namespace}/pods/plain",
        }
        self.before: dict[str, Json] = {}

    def wait_ready(self) -> None:
        for path in self.paths.values():
            self.kube.wait(path, is_ready, within=90)

    def alive(self) -> dict[str, tuple[str, int]]:
        """Return what runs: id -> name and PID."""
        with CriClient(self.agent.containerd.socket) as cri:
            running = v1.ContainerState.CONTAINER_RUNNING
            return {
                c.id: (c.labels["io.kubernetes.pod.name"], cri.container_pid(c.id))
                for c in cri.containers()
                if c.state == running
            }

    def facts(self) -> dict[str, Json]:
        """Return what the API server is told of each pod, as far as it has to stay."""
        found = {}
        for name, path in self.paths.items():
            shown = self.kube.get(path)
            status, mains = shown["status"], container_status(shown, "main")
            found[name] = {
                "uid": shown["metadata"]["uid"],
                "mirrors": shown["metadata"].get("annotations", {}).get(MIRROR),
                "phase": status["phase"],
                "ip": status["podIP"],
                # That of a static pod is of the agent that runs.
                "start": name == STATIC or status["startTime"],
                "init": [c["state"] for c in status["initContainerStatuses"]],
                **{
                    key: mains[key]
                    for key in ("state", "lastState", "restartCount", "containerID", "ready")
                },
            }
        return found

    def events(self, *reasons: str) -> list[tuple[str, str]]:
        listed = self.kube.get("/api/v1/namespaces/default/events")["items"]
        return [(e["reason"], e["message"]) for e in listed if e["reason"] in reasons]


@pytest.fixture
def migrant(
    plane: ControlPlane,
    kube: KubeClient,
    make_agent: Callable[..., Agent],
    namespace: str,
    tmp_path: Path,
) -> Iterator[Migrant]:
    kubeconfig = plane.node_kubeconfig(NODE)
    arguments = ("--kubeconfig", str(kubeconfig), "--hostname-override", NODE)
    agent = make_agent(arguments=arguments)
    go = GoKubelet(agent, NODE, kubeconfig)
    base = f"/api/v1/namespaces/{namespace}"
    kube.create(f"{base}/secrets", {"metadata": {"name": "secret"}, "stringData": {"a": "s3cret"}})
    kube.create(f"{base}/configmaps", {"metadata": {"name": "config"}, "data": {"b": "1"}})
    manifest = agent.manifests / "fixed.yaml"
    manifest.write_text(yaml.safe_dump(workload("fixed", tmp_path / "fixed")))
    try:
        go.start()
        kube.wait(f"/api/v1/nodes/{NODE}", is_ready_node, within=90)
        kube.patch(f"/api/v1/nodes/{NODE}", {"spec": {"taints": None}})
        given = [
            {"name": "config", "configMap": {"name": "config"}},
            {"name": "secret", "secret": {"secretName": "secret"}},
        ]
        kube.create(f"{base}/pods", workload("plain", tmp_path / "p", given, nodeName=NODE))
        yield Migrant(agent, go, kube, namespace)
    finally:
        go.stop()
        go.restore()
        for logs in Path("/var/log/pods").glob("*"):
            if logs.name.startswith((f"default_{STATIC}_", f"{namespace}_plain_")):
                shutil.rmtree(logs)


def is_ready_node(node: Json) -> bool:
    conditions = node.get("status", {}).get("conditions", [])
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def test_a_node_is_taken_over_and_handed_back(migrant: Migrant) -> None:
    migrant.wait_ready()
    eventually(lambda: migrant.facts()["plain"]["restartCount"] == 1)
    migrant.go.stop()
    before, alive = migrant.facts(), migrant.alive()
    assert sorted(name for name, _ in alive.values()) == [STATIC, "plain"]

    migrant.agent.start()
    time.sleep(LOOKED * PATIENCE)
    assert migrant.alive() == alive
    assert migrant.facts() == before
    [(_, message)] = migrant.events("Adopted", "NotAdopted")
    assert message.endswith("its mirror pod shows the same spec")
    migrant.agent.stop()
    # Once more, by what it has recorded.
    migrant.agent.start()
    migrant.agent.stop()
    assert migrant.alive() == alive

    migrant.go.start()
    watch(migrant.go, LOOKED)
    assert migrant.alive() == alive
    assert migrant.facts() == before
