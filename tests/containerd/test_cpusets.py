"""Exclusive, shared and reserved CPUs on real cgroups, while pods come and go and agents die."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.harness import (
    Agent,
    Containerd,
    CriClient,
    Json,
    container,
    container_status,
    eventually,
    forever,
    live_containers,
    pod,
)
from tests.harness.cgroups import allowed_cpus, container_cgroup, cpus_of
from tests.harness.pods import NODE

ONLINE = cpus_of(Path("/sys/devices/system/cpu/online").read_text())
RESERVED = min(ONLINE)
pytestmark = pytest.mark.skipif(len(ONLINE) < 2, reason="needs a CPU besides the reserved one")

CONFIG: Json = {
    "cpuManagerPolicy": "static",
    # Rounded up to a whole CPU; the other half is for requests of pods that share it.
    "systemReserved": {"cpu": "500m", "memory": "64Mi"},
    "topologyManagerPolicy": "best-effort",
    # Only the changes themselves are to move the sets.
    "cpuManagerReconcilePeriod": "10m",
}


# Not in CONFIG: a virtual machine may get more memory at any time, and then no agent goes on from
# the checkpoint, as upstream.
MEMORY: Json = {
    "memoryManagerPolicy": "Static",
    "evictionHard": {"memory.available": "1Mi"},
    "reservedMemory": [{"numaNode": 0, "limits": {"memory": "65Mi"}}],
}


class Node:
    """An agent with static policies; it may be killed and started again."""

    def __init__(
        self, base: Path, containerd: Containerd, cri: CriClient, config: Json = CONFIG
    ) -> None:
        self.agent = Agent(base, containerd, config=config)
        self.cri = cri

    def remove_pods(self) -> None:
        names = [manifest.stem for manifest in self.agent.manifests.iterdir()]
        for name in names:
            self.agent.drop(name)
        for name in names:
            self.agent.wait_gone(name)

    def put(self, name: str, cpu: str, request: str = "") -> None:
        """Run a pod with one container `main`, Guaranteed unless it requests less CPU."""
        limits = {"cpu": cpu, "memory": "32Mi"}
        requests = {**limits, "cpu": request or cpu}
        main = container("main", forever(), resources={"limits": limits, "requests": requests})
        self.agent.put(pod(name, main))

    def pid(self, name: str) -> int:
        return self.cri.container_pid(live_containers(self.cri, f"{name}-{NODE}")["main"])

    def allowed(self, name: str) -> frozenset[int]:
        """Return the CPUs that the kernel lets the container have."""
        return allowed_cpus(self.pid(name))

    def mems(self, name: str) -> str:
        """Return what the runtime was told of the container's NUMA nodes."""
        live = live_containers(self.cri, f"{name}-{NODE}")
        resources = self.cri.container_status(live["main"]).resources
        assert resources is not None
        assert resources.linux is not None
        return resources.linux.cpuset_mems

    def wait_cpus(self, name: str, cpus: frozenset[int]) -> None:
        eventually(lambda: self.allowed(name) == cpus, what=f"{name} has CPUs {set(cpus)}")

    def quotas(self, name: str) -> tuple[int | None, int | None]:
        """Return the CFS quota of the container's cgroup and of its pod's."""
        live = live_containers(self.cri, f"{name}-{NODE}")
        cgroup = container_cgroup(self.cri, live["main"])
        return cgroup.limits().quota, cgroup.parent.limits().quota

    def checkpoint(self) -> Json:
        found: Json = json.loads((self.agent.root / "cpu_manager_state").read_text())
        return found


@pytest.fixture(scope="module")
def node(
    containerd: Containerd, cri: CriClient, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Node]:
    node = Node(tmp_path_factory.mktemp("cpusets"), containerd, cri)
    node.agent.start()
    try:
        yield node
    finally:
        node.agent.close()


@pytest.fixture(autouse=True)
def no_pods(node: Node) -> Iterator[None]:
    """Leave no pod to the next test."""
    yield
    node.remove_pods()


def test_an_exclusive_cpu_is_taken_from_all_others_and_given_back(node: Node) -> None:
    node.agent.put(pod("besteffort"))
    node.put("burstable", "500m", request="100m")
    for name in ("besteffort", "burstable"):
        node.agent.wait_ready(name)
        node.wait_cpus(name, ONLINE)
    node.put("exclusive", "1")
    node.agent.wait_ready("exclusive")
    own = node.allowed("exclusive")
    assert len(own) == 1
    assert RESERVED not in own
    for name in ("besteffort", "burstable"):
        node.wait_cpus(name, ONLINE - own)
    node.agent.put(pod("late"))  # made when the pool is small already
    node.agent.wait_ready("late")
    assert node.allowed("late") == ONLINE - own
    node.agent.drop("exclusive")
    node.agent.wait_gone("exclusive")
    for name in ("besteffort", "burstable", "late"):
        node.wait_cpus(name, ONLINE)


def test_a_container_with_cpus_of_its_own_is_not_throttled(node: Node) -> None:
    node.put("exclusive", "1")
    node.put("burstable", "1", request="100m")
    for name in ("exclusive", "burstable"):
        node.agent.wait_ready(name)
    assert node.quotas("exclusive") == (None, None)
    assert node.quotas("burstable") == (100_000, 100_000)


def kill(agent: Agent) -> None:
    agent.kill()


def stop(agent: Agent) -> None:
    assert agent.stop() == 0


@pytest.mark.parametrize("end", [kill, stop])
def test_the_next_agent_finds_all_as_it_was(node: Node, end: Callable[[Agent], None]) -> None:
    node.put("exclusive", "1")
    node.agent.put(pod("shared"))
    before = {name: node.agent.wait_ready(name) for name in ("exclusive", "shared")}
    own = node.allowed("exclusive")
    node.wait_cpus("shared", ONLINE - own)
    written = node.checkpoint()
    assert list(written["entries"]) == [before["exclusive"]["metadata"]["uid"]]
    end(node.agent)
    node.agent.start()
    for name in ("exclusive", "shared"):
        again = node.agent.wait_ready(name)
        assert (
            container_status(again, "main")["containerID"]
            == container_status(before[name], "main")["containerID"]
        )
    assert node.allowed("exclusive") == own
    assert node.allowed("shared") == ONLINE - own
    assert node.checkpoint() == written


def test_what_ended_while_no_agent_ran_gives_its_cpu_back(node: Node) -> None:
    node.put("exclusive", "1")
    node.agent.put(pod("shared"))
    for name in ("exclusive", "shared"):
        node.agent.wait_ready(name)
    node.agent.kill()
    node.agent.drop("exclusive")
    node.agent.start()
    node.agent.wait_gone("exclusive")
    node.wait_cpus("shared", ONLINE)
    eventually(lambda: "entries" not in node.checkpoint(), what="the checkpoint is empty")


def test_an_agent_of_another_policy_does_not_start(node: Node) -> None:
    node.put("exclusive", "1")
    node.agent.wait_ready("exclusive")
    own = node.allowed("exclusive")
    node.agent.kill()
    node.agent.config = {**node.agent.config, "cpuManagerPolicy": "none"}
    refused = node.agent.run_again()
    assert refused.returncode != 0
    text = node.agent.tail() + refused.stdout + refused.stderr
    assert "please drain this node and delete the CPU manager checkpoint file" in text
    assert node.allowed("exclusive") == own  # it runs on as it was
    node.agent.config = {**node.agent.config, "cpuManagerPolicy": "static"}
    node.agent.start()
    node.agent.wait_ready("exclusive")


def test_memory_of_a_guaranteed_pod_is_on_the_nodes_that_it_was_given(
    containerd: Containerd, cri: CriClient, tmp_path: Path
) -> None:
    node = Node(tmp_path, containerd, cri, {**CONFIG, **MEMORY})
    node.agent.start()
    try:
        node.put("guaranteed", "500m")  # its memory alone is its own
        node.put("burstable", "500m", request="100m")
        for name in ("guaranteed", "burstable"):
            node.agent.wait_ready(name)
            assert node.allowed(name) == ONLINE
        assert node.mems("guaranteed") == "0"
        written = json.loads((node.agent.root / "memory_manager_state").read_text())
        (entry,) = written["entries"].values()
        assert entry == {"main": [{"numaAffinity": [0], "type": "memory", "size": 32 << 20}]}
        node.remove_pods()
    finally:
        node.agent.close()
