"""A `KubeletApiView` of plain values, on a runtime that a test serves streams for."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from lightkube.models.core_v1 import Pod

from kubelet_trio.cri import Runtime
from kubelet_trio.model import (
    ContainerId,
    ContainerRecord,
    ContainerState,
    PodUid,
    RuntimePod,
    SandboxId,
    SandboxRecord,
)
from kubelet_trio.server import AgentStatus
from kubelet_trio.testing import FakeRuntime
from tests.server.fake_view import FakeView, make_pod


class FakeKubeletApiView(FakeView):
    """What the kubelet API is shown; every pod's container `web` runs as `c1`."""

    def __init__(self, *pods: Pod, root_dir: Path = Path("/nowhere")) -> None:
        super().__init__(*(pods or (make_pod(),)))
        self.fake_runtime = FakeRuntime()
        self.root_dir = root_dir
        self.seen: dict[str, RuntimePod] = {uid: running_pod(uid) for uid in self.pods.value}

    @property
    def runtime(self) -> Runtime:
        return self.fake_runtime

    def observed(self, uid: PodUid) -> RuntimePod:
        return self.seen.get(uid, RuntimePod(uid))

    def running_pods(self) -> Iterable[RuntimePod]:
        return self.seen.values()

    def status(self) -> AgentStatus:
        return AgentStatus("node1", str(self.root_dir), 1_700_000_000.0, super().status().runtime)


def running_pod(uid: PodUid, state: ContainerState = ContainerState.RUNNING) -> RuntimePod:
    sandbox = SandboxRecord(
        SandboxId("s1"), state is ContainerState.RUNNING, 0, 1.0, host_network=False
    )
    container = ContainerRecord(ContainerId("c1"), "web", sandbox.id, state, 0, 1.0, image="nginx")
    return RuntimePod(uid, "default", "web-node1", (sandbox,), (container,))
