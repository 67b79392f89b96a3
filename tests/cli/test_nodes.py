"""`get node`, `describe node` and `images` against a real control socket."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from kubelet_trio.cli.main import cli
from kubelet_trio.model import Event, ObjectRef
from tests.cli.running import ServedView, served
from tests.server.fake_view import make_pod
from tests.server.node_view import FakeKubeletApiView

GIB = 2**30 * 10**9


def pod(name: str, *, is_terminal: bool = False, **amounts: dict[str, int]) -> dict[str, Any]:
    plain = {"namespace": "default", "name": name, "is_terminal": is_terminal}
    return {**plain, "requests": {}, "limits": {}, **amounts}


PAGE: dict[str, Any] = {
    "object": {
        "metadata": {
            "name": "node1",
            "labels": {"kubernetes.io/os": "linux", "node-role.kubernetes.io/edge": ""},
        },
        "spec": {"taints": [{"key": "a", "value": "b", "effect": "NoSchedule"}]},
        "status": {
            "addresses": [
                {"type": "InternalIP", "address": "192.0.2.7"},
                {"type": "Hostname", "address": "node1"},
            ],
            "capacity": {"cpu": "4", "memory": "8Gi", "pods": "110"},
            "allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110", "ephemeral-storage": "1Gi"},
            "conditions": [
                {
                    "type": "Ready",
                    "status": "True",
                    "reason": "KubeletReady",
                    "message": "kubelet is posting ready status",
                    "lastTransitionTime": "2026-01-02T15:04:05Z",
                }
            ],
            "nodeInfo": {"kubeletVersion": "v1.36.2", "osImage": "Debian", "kernelVersion": "6.1"},
        },
    },
    "pods": [
        pod(
            "web-node1",
            requests={"cpu": 500 * 10**6, "memory": GIB},
            limits={"cpu": 10**9, "memory": 2 * GIB},
        ),
        pod("log-node1", requests={"cpu": 250 * 10**6}),
        pod("done-node1", is_terminal=True, requests={"cpu": 10**9}),
    ],
    "eviction": [
        {"signal": "memory.available", "value": "104857600", "grace_seconds": 0.0},
        {
            "signal": "nodefs.inodesFree",
            "value": "5%",
            "grace_seconds": 30.0,
            "min_reclaim": "1%",
        },
    ],
    "managers": {"cpuManagerPolicy": "static"},
}


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[ServedView]:
    view = FakeKubeletApiView(make_pod())
    view.events.fold(Event(ObjectRef("Node", "node1"), "Normal", "Starting", "Starting.", 1.0))
    with served(view, tmp_path) as running:
        running.node = msgspec.json.encode(PAGE)
        yield running


def invoke(agent: ServedView, *words: str) -> Result:
    return CliRunner().invoke(cli, ["--root-dir", str(agent.root), *words])


def test_the_node_is_listed_as_by_kubectl(agent: ServedView) -> None:
    header, line = invoke(agent, "get", "nodes").output.splitlines()
    assert header.split() == ["NAME", "STATUS", "ROLES", "AGE", "VERSION"]
    assert line.split() == ["node1", "Ready", "edge", "<unknown>", "v1.36.2"]
    wide = invoke(agent, "get", "node", "node1", "-o", "wide").output
    assert "192.0.2.7" in wide
    assert invoke(agent, "get", "no", "-o", "name").output == "node/node1\n"
    path = "jsonpath={.status.capacity.cpu}"
    assert invoke(agent, "get", "node/node1", "-o", path).output == "4"


@pytest.mark.parametrize("words", [("get", "node", "other"), ("describe", "node", "other")])
def test_another_node_is_not_found(agent: ServedView, words: tuple[str, ...]) -> None:
    refused = invoke(agent, *words)
    expected = 'error: nodes "other" not found: this agent is "node1"\n'
    assert (refused.exit_code, refused.stderr) == (1, expected)


@pytest.mark.parametrize("words", [("node",), ("node", "node1"), ("no/node1",)])
def test_the_node_is_described_with_its_pods(agent: ServedView, words: tuple[str, ...]) -> None:
    lines = invoke(agent, "describe", *words).output.splitlines()
    squeezed = [" ".join(line.split()) for line in lines]
    assert lines[0] == "Name:               node1"
    for expected in (
        "Roles: edge",
        "CreationTimestamp: <not registered>",
        "Taints: a=b:NoSchedule",
        "Hostname: node1",
        "memory: 8Gi",
        "Kernel Version: 6.1",
        "Non-terminated Pods: (2 in total)",
        "default log-node1 250m (6%) 0 (0%) 0 (0%) 0 (0%)",
        "default web-node1 500m (12%) 1 (25%) 1Gi (12%) 2Gi (25%)",
        "cpu 750m (18%) 1 (25%)",
        "memory 1Gi (12%) 2Gi (25%)",
        "ephemeral-storage 0 (0%) 0 (0%)",
        "memory.available < 100Mi (hard)",
        "nodefs.inodesFree < 5% for 30s (soft), reclaims at least 1%",
        "cpuManagerPolicy: static",
    ):
        assert expected in squeezed, expected
    assert "Starting." in lines[-1]


def test_images_have_their_size_and_users(agent: ServedView) -> None:
    view = agent.view
    assert isinstance(view, FakeKubeletApiView)
    image = view.fake_runtime.images.image("docker.io/library/nginx:1.27")
    agent.do(lambda: view.fake_runtime.images.present.add("docker.io/library/nginx:1.27"))
    shown = invoke(agent, "images")
    header, line = shown.output.splitlines()
    assert header.split()[:4] == ["IMAGE", "TAG", "ID", "SIZE"]
    assert line.split()[:2] == ["docker.io/library/nginx", "1.27"]
    assert line.split()[-1] == "<none>"
    running = {"name": "web", "image": "docker.io/library/nginx:1.27", "imageID": image.id}
    state = {"ready": True, "restartCount": 0}
    status = {"phase": "Running", "containerStatuses": [{**running, **state}]}
    agent.do(lambda: view.put(make_pod(status=status)))
    assert invoke(agent, "images").output.split()[-1] == "default/web-node1"
    for name in ("nginx", "nginx:1.27", image.id):
        assert len(invoke(agent, "get", "images", name).output.splitlines()) == 2
    refused = invoke(agent, "images", "nosuch")
    assert (refused.exit_code, refused.stderr) == (1, 'error: images "nosuch" not found\n')
