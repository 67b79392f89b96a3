"""What the node object says of a real machine and its runtime, as an API server is told it."""

from __future__ import annotations

import os
from pathlib import Path

import trio
from lightkube.models.core_v1 import NodeCondition
from lightkube.resources.core_v1 import Node

from kubelet_trio.agent import Agent
from kubelet_trio.daemon import Apis
from kubelet_trio.model import SystemClock
from kubelet_trio.testing import FakeKube
from tests.harness import Containerd, Json
from tests.harness.inside import inside_agent
from tests.harness.machine import PATIENCE

PRESSURES = ("MemoryPressure", "DiskPressure", "PIDPressure")
# Of a machine whose disk is nearly full nothing is to be said here.
NO_DISK: Json = {"nodefs.available": "1Mi", "imagefs.available": "1Mi", "nodefs.inodesFree": "10"}


def node_of(containerd: Containerd, base: Path, config: Json) -> tuple[Agent, FakeKube]:
    kube = FakeKube(clock=SystemClock())
    period: Json = {"nodeStatusUpdateFrequency": "1s"}
    apis = Apis(kube, kube, "https://api:6443")
    agent, _ = inside_agent(containerd, base, {**period, **config}, apis)
    return agent, kube


def conditions(kube: FakeKube) -> dict[str, NodeCondition]:
    node = kube.find(Node, "node")
    if node is None or node.status is None:
        return {}
    return {c.type: c for c in node.status.conditions or ()}


async def wait_condition(kube: FakeKube, kind: str, status: str) -> NodeCondition:
    with trio.fail_after(60 * PATIENCE):
        # FakeKube announces only by watches.
        while (found := conditions(kube).get(kind)) is None or found.status != status:  # noqa: ASYNC110
            await trio.sleep(0.1)
        return found


async def test_a_node_is_ready_while_its_runtime_answers(
    containerd: Containerd, tmp_path: Path
) -> None:
    agent, kube = node_of(containerd, tmp_path, {"evictionHard": NO_DISK})
    async with trio.open_nursery() as nursery:
        await nursery.start(agent.run)
        await wait_condition(kube, "Ready", "True")
        assert {kind: conditions(kube)[kind].status for kind in PRESSURES} == dict.fromkeys(
            PRESSURES, "False"
        )
        node = kube.find(Node, "node")
        assert node is not None
        assert node.status is not None
        info = node.status.nodeInfo
        assert info is not None
        assert info.kernelVersion == os.uname().release
        assert info.containerRuntimeVersion.startswith("containerd://")

        containerd.stop()
        try:
            away = await wait_condition(kube, "Ready", "False")
            assert "runtime" in (away.message or "")
        finally:
            containerd.start()
        await wait_condition(kube, "Ready", "True")
        nursery.cancel_scope.cancel()


async def test_a_machine_that_is_short_of_memory_says_so(
    containerd: Containerd, tmp_path: Path
) -> None:
    config: Json = {"evictionHard": {**NO_DISK, "memory.available": "99%"}}
    agent, kube = node_of(containerd, tmp_path, config)
    async with trio.open_nursery() as nursery:
        await nursery.start(agent.run)
        short = await wait_condition(kube, "MemoryPressure", "True")
        assert short.reason == "KubeletHasInsufficientMemory"
        assert (await wait_condition(kube, "Ready", "True")).reason == "KubeletReady"
        nursery.cancel_scope.cancel()
