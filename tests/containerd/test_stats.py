"""What the stats pages say of a real pod on a real runtime."""

from __future__ import annotations

import json
import urllib.request

from tests.containerd.conftest import MakeAgent
from tests.harness import Agent, Json, container, eventually, forever, pod
from tests.harness.ports import free_port

WORK = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; echo done > /written"


def get(port: int, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
        text: str = answer.read().decode()
    return text


def summary_of(port: int, name: str) -> Json:
    """Return a pod's part of the summary; empty while it is not in it."""
    pods = json.loads(get(port, "/stats/summary"))["pods"]
    return next((p for p in pods if p["podRef"]["name"] == name), {})


def is_complete(found: Json) -> bool:
    """Whether the pod has used CPU and memory, written to its layer, and been on the network."""
    containers = found.get("containers", [])
    return bool(
        containers
        and containers[0].get("cpu", {}).get("usageCoreNanoSeconds")
        and containers[0].get("memory", {}).get("workingSetBytes")
        and containers[0].get("rootfs", {}).get("usedBytes")
        and found.get("memory", {}).get("usageBytes")
        and found.get("network", {}).get("name") == "eth0"
        and found.get("process_stats", {}).get("process_count")
    )


def test_the_pages_tell_of_a_pod(make_agent: MakeAgent) -> None:
    port = free_port()
    agent: Agent = make_agent(config={"readOnlyPort": port, "address": "127.0.0.1"})
    agent.start()
    agent.put(pod("busy", container("main", forever(WORK))))
    eventually(lambda: is_complete(summary_of(port, "busy-node")), 90, "the pod's stats")
    found = summary_of(port, "busy-node")
    assert found["podRef"]["namespace"] == "default"
    assert [c["name"] for c in found["containers"]] == ["main"]
    assert found["ephemeral-storage"]["usedBytes"] > 0
    rows = get(port, "/metrics/cadvisor").splitlines()
    own = [r for r in rows if 'container="main"' in r and 'pod="busy-node"' in r]
    names = {r.partition("{")[0] for r in own}
    assert {"container_cpu_usage_seconds_total", "container_memory_working_set_bytes"} <= names
    assert any(r.startswith("container_network_receive_bytes_total") for r in rows)
    assert 'container_memory_working_set_bytes{container="main",namespace="default"' in get(
        port, "/metrics/resource"
    )
    assert "kubelet_running_pods 1" in get(port, "/metrics")
    used = [line.split() for line in agent.cli("top", "pods", "--containers").splitlines()]
    ((cpu, memory),) = [row[3:] for row in used if row[:3] == ["default", "busy-node", "main"]]
    assert (cpu[-1], memory[-2:]) == ("m", "Mi")
    assert agent.cli("top", "node").splitlines()[1].split()[0] == "node"
