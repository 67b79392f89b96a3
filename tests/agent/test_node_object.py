"""The control socket's `/node` of a running agent."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import msgspec
import pytest
import trio
from trio.testing import MockClock

from kubelet_trio.agent import OwnNode
from kubelet_trio.node import NodeIdentity, NodeResources, system_info
from kubelet_trio.pressure import Amount, EvictionPolicy, Threshold
from kubelet_trio.server import HttpError
from tests.agent.node import Node, guaranteed, make_pod


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


OWN = OwnNode(
    NodeIdentity("node", labels={"zone": "a"}),
    NodeResources(
        {"cpu": "4", "memory": "8Gi", "pods": "110", "ephemeral-storage": "1Gi"},
        {"cpu": "3", "memory": "7Gi", "pods": "110", "ephemeral-storage": "1Gi"},
    ),
    partial(system_info, "v1.36.2"),
    ("192.0.2.7",),
)


async def test_a_standalone_node_is_shown_as_it_would_be_reported(
    node: Node, autojump_clock: MockClock
) -> None:
    eviction = EvictionPolicy((Threshold("memory.available", Amount(percent=5.0)),))
    pods = guaranteed("own", "2"), make_pod("shared")
    async with node.running(*pods, own_node=OWN, eviction=eviction) as agent:
        await trio.sleep(5)
        first = msgspec.json.decode(await agent.node_object_page.page())
        await trio.sleep(60)
        later = msgspec.json.decode(await agent.node_object_page.page())
    shown = first["object"]
    assert shown["metadata"]["labels"]["zone"] == "a"
    assert shown["status"]["allocatable"]["cpu"] == "3"
    assert shown["status"]["addresses"][0] == {"type": "InternalIP", "address": "192.0.2.7"}
    ready = next(c for c in shown["status"]["conditions"] if c["type"] == "Ready")
    assert ready["status"] == "True"
    # A condition keeps the time of its last change from one request to the next.
    again = next(c for c in later["object"]["status"]["conditions"] if c["type"] == "Ready")
    assert again["lastTransitionTime"] == ready["lastTransitionTime"]
    assert again["lastHeartbeatTime"] != ready["lastHeartbeatTime"]
    requests = {pod["name"]: pod["requests"] for pod in first["pods"]}
    assert requests["own-node"] == {"cpu": 2 * 10**9, "memory": 2**30 * 10**9}
    assert requests["shared-node"] == {}
    assert first["eviction"][0] == {
        "signal": "memory.available",
        "value": "5%",
        "grace_seconds": 0.0,
        "min_reclaim": None,
    }
    assert first["managers"]["cpuManagerPolicy"] == "none"


async def test_an_embedded_agent_has_no_node(node: Node, autojump_clock: MockClock) -> None:
    async with node.running() as agent:
        with pytest.raises(HttpError, match="an embedded agent has no node object"):
            await agent.node_object_page.page()
