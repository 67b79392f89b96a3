"""An `AgentView` made of plain values, for the control socket and the command line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
from lightkube.models.core_v1 import Pod
from trio_util import AsyncValue

from kubelet_trio.events import EventRing
from kubelet_trio.model import ContainerId, PodUid, pod_uid
from kubelet_trio.server import AgentStatus, PortInfo, ProblemInfo, RuntimeInfo, SourceInfo
from kubelet_trio.supervision import ChildState, TreeNode


class FakeView:
    """What the agent would show. Set `running` and `logs` by container ID."""

    def __init__(self, *pods: Pod) -> None:
        self.pods: AsyncValue[Mapping[PodUid, Pod]] = AsyncValue({pod_uid(p): p for p in pods})
        self.events = EventRing("node1")
        self.logs: dict[str, Path] = {}
        self.running: set[str] = set()

    def put(self, *pods: Pod) -> None:
        self.pods.value = {**self.pods.value, **{pod_uid(p): p for p in pods}}

    def drop(self, uid: str) -> None:
        self.pods.value = {u: p for u, p in self.pods.value.items() if u != uid}

    def status(self) -> AgentStatus:
        return AgentStatus(
            node_name="node1",
            root_dir="/var/lib/kubelet",
            started_at=1_700_000_000.0,
            runtime=RuntimeInfo("unix:///run/c.sock", "containerd", "v2.0.1"),
            sources=(
                SourceInfo(
                    "file:/etc/kubernetes/manifests",
                    delivered=True,
                    pods=2,
                    problems=(ProblemInfo("web.yaml", "spec.containers: Required value"),),
                ),
                SourceInfo("http:https://config", delivered=False),
            ),
            checks={"syncloop": None, "runtime": "connection refused"},
            notes=("--pod-cidr has no effect",),
            events_dropped=3,
            ports=(
                PortInfo("healthz", "healthzPort", "127.0.0.1:10248", "healthzPort: taken"),
                PortInfo("ui", "--ui-port", "127.0.0.1:8080"),
            ),
        )

    def tree(self) -> TreeNode:
        child = TreeNode("health", ChildState.RUNNING, restarts=1, last_error="Boom", age=61.0)
        return TreeNode("kubelet", ChildState.RUNNING, age=90.0, children=(child,))

    def log_path(self, uid: PodUid, container_id: ContainerId) -> Path | None:
        return self.logs.get(container_id)

    def is_running(self, uid: PodUid, container_id: ContainerId) -> bool:
        return container_id in self.running


def make_pod(
    name: str = "web-node1", *, uid: str = "u1", namespace: str = "default", **changes: object
) -> Pod:
    """Return a running pod of one container; `changes` are merged into its JSON, top level."""
    body: dict[str, object] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "uid": uid},
        "spec": {"nodeName": "node1", "containers": [{"name": "web", "image": "nginx"}]},
        "status": {
            "phase": "Running",
            "startTime": "2026-01-02T15:04:05Z",
            "podIPs": [{"ip": "10.88.0.2"}],
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [
                {
                    "name": "web",
                    "image": "nginx",
                    "imageID": "sha256:1",
                    "ready": True,
                    "restartCount": 0,
                    "containerID": "containerd://c1",
                    "state": {"running": {"startedAt": "2026-01-02T15:04:06Z"}},
                }
            ],
        },
        **changes,
    }
    return msgspec.convert(body, Pod)
