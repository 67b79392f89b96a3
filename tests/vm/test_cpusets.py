"""CPUs and memory of containers' own, as the kernel of a machine with two NUMA nodes gives them.

The VM has two sockets of one core with two threads: node 0 has CPUs 0-1, node 1 has 2-3, and each
has half of the memory. CPU 0 is the system's.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.containerd.conftest import MakeAgent
from tests.harness import (
    Agent,
    CriClient,
    Json,
    container_status,
    eventually,
    forever,
    is_ready,
    live_containers,
    pod,
)
from tests.harness.pods import NODE
from tests.vm.test_cgroups import MI, SYSTEMD, container_cgroup, read, sized

NODES = Path("/sys/devices/system/node")
PAGES = NODES / "node1/hugepages/hugepages-2048kB/nr_hugepages"
UNLIMITED, HALF = "max 100000", "50000 100000"
FILES = ("cpuset.cpus", "cpuset.cpus.effective", "cpuset.mems", "cpuset.mems.effective", "cpu.max")
CONFIG: Json = {
    "cpuManagerPolicy": "static",
    # What is seen here comes at once after a change, and not by the next comparison.
    "cpuManagerReconcilePeriod": "1h",
    "reservedSystemCPUs": "0",
    "memoryManagerPolicy": "Static",
    "systemReserved": {"memory": "100Mi"},
    # With the 100Mi of evictionHard.
    "reservedMemory": [
        {"numaNode": 0, "limits": {"memory": "120Mi"}},
        {"numaNode": 1, "limits": {"memory": "80Mi"}},
    ],
    "topologyManagerPolicy": "single-numa-node",
}


@pytest.fixture(scope="module", autouse=True)
def pages() -> Iterator[None]:
    """Give node 1, and only it, huge pages."""
    assert (NODES / "node0/cpulist").read_text().strip() == "0-1"
    assert (NODES / "node1/cpulist").read_text().strip() == "2-3"
    PAGES.write_text("8")
    assert PAGES.read_text().strip() == "8"
    yield
    PAGES.write_text("0")


@pytest.fixture(scope="module")
def shared_agent(make_agent: MakeAgent) -> Agent:
    made = make_agent(config=CONFIG)
    made.start()
    return made


@pytest.fixture
def agent(shared_agent: Agent) -> Iterator[Agent]:
    """The module's agent, without pods before and after a test."""
    yield shared_agent
    end(shared_agent, *(manifest.stem for manifest in shared_agent.manifests.iterdir()))


def certain(name: str, cpu: str, memory: str = "64Mi", script: str = "", **pages: str) -> Json:
    """Return a Guaranteed pod."""
    same = {"cpu": cpu, "memory": memory, **pages}
    main = sized("main", requests=same, limits=same)
    if script:
        main["command"] = ["sh", "-c", forever(script)]
    return pod(name, main)


def main_id(cri: CriClient, name: str) -> str:
    return live_containers(cri, f"{name}-{NODE}")["main"]


def cgroup(cri: CriClient, name: str) -> Path:
    return container_cgroup(cri, main_id(cri, name))


def kernel(cri: CriClient, name: str) -> dict[str, str]:
    """Return what the kernel has for a pod's container, and lets its first process use."""
    found = {file: read(cgroup(cri, name), file) for file in FILES}
    status = Path(f"/proc/{cri.container_pid(main_id(cri, name))}/status").read_text()
    for what in ("Cpus", "Mems"):
        match = re.search(rf"^{what}_allowed_list:\t(.*)$", status, re.MULTILINE)
        assert match is not None
        found[what] = match[1]
    return found


def given(cpus: str, mems: str = "", quota: str = UNLIMITED) -> dict[str, str]:
    """Return what the kernel has for a container with these CPUs and memory nodes; "": all."""
    nodes = mems or "0-1"
    return {
        "cpuset.cpus": cpus,
        "cpuset.cpus.effective": cpus,
        "cpuset.mems": mems,
        "cpuset.mems.effective": nodes,
        "cpu.max": quota,
        "Cpus": cpus,
        "Mems": nodes,
    }


def gets(cri: CriClient, wanted: dict[str, dict[str, str]]) -> None:
    """Wait until the kernel has this for the containers of these pods."""
    last: dict[str, dict[str, str]] = {}

    def has() -> bool:
        last.update({name: kernel(cri, name) for name in wanted})
        return last == wanted

    eventually(has, what=f"the kernel has {wanted}, and not {last}", every=0.5)


def run(agent: Agent, cri: CriClient, manifest: Json) -> dict[str, str]:
    """Run a pod and return what the kernel has for it."""
    name = manifest["metadata"]["name"]
    agent.put(manifest)
    agent.wait_ready(name)
    return kernel(cri, name)


def end(agent: Agent, *names: str) -> None:
    for name in names:
        agent.drop(name)
    for name in names:
        agent.wait_gone(name)


def refusal(agent: Agent, manifest: Json) -> tuple[str, str]:
    """Return reason and message of a pod that the node refuses."""
    name = manifest["metadata"]["name"]
    agent.put(manifest)
    status = agent.wait(name, lambda p: p["status"].get("reason"), what="refused")["status"]
    assert status["phase"] == "Failed"
    return status["reason"], status["message"]


def test_who_has_no_cpus_of_its_own_leaves_them_to_others_and_gets_them_back(
    agent: Agent, cri: CriClient
) -> None:
    limited = sized("main", requests={"cpu": "0", "memory": "16Mi"}, limits={"cpu": "500m"})
    assert run(agent, cri, pod("best")) == given("0-3")
    assert run(agent, cri, pod("limited", limited)) == given("0-3", "", HALF)
    # Guaranteed, but with half a CPU: its memory is on one node, and its CPUs are those of all.
    assert run(agent, cri, certain("half", "500m")) == given("0-3", "0", HALF)

    # Node 0 has one CPU beside that of the system.
    assert run(agent, cri, certain("pair", "2")) == given("2-3", "1")
    assert read(cgroup(cri, "pair").parent, "cpu.max") == UNLIMITED
    assert read(cgroup(cri, "half").parent, "cpu.max") == HALF
    small = {
        "best": given("0-1"),
        "limited": given("0-1", "", HALF),
        "half": given("0-1", "0", HALF),
    }
    gets(cri, small)
    # Only containers are held to CPUs: their pods and classes may use those of each.
    assert read(cgroup(cri, "best").parent, "cpuset.cpus") == ""
    assert read(cgroup(cri, "best").parent, "cpuset.cpus.effective") == "0-3"

    end(agent, "pair", "half")
    gets(cri, {"best": given("0-3"), "limited": given("0-3", "", HALF)})


def test_a_killed_agent_changes_nothing_and_the_next_one_goes_on(
    agent: Agent, cri: CriClient
) -> None:
    run(agent, cri, pod("best"))
    assert run(agent, cri, certain("pair", "2")) == given("2-3", "1")
    assert run(agent, cri, certain("single", "1")) == given("1", "0")
    held = {"pair": given("2-3", "1"), "single": given("1", "0"), "best": given("0")}
    gets(cri, held)
    before = {name: cri.container_pid(main_id(cri, name)) for name in held}

    agent.kill()
    if SYSTEMD:  # what systemd was not told would be lost now
        subprocess.run(["systemctl", "daemon-reload"], check=True)
    assert {name: kernel(cri, name) for name in held} == held
    agent.start()
    for name in held:
        made = agent.wait_ready(name)
        assert container_status(made, "main")["restartCount"] == 0
    assert {name: cri.container_pid(main_id(cri, name)) for name in held} == before
    assert {name: kernel(cri, name) for name in held} == held

    # A neighbour goes, and another one comes, while there is no agent.
    agent.kill()
    agent.drop("single")
    agent.put(pod("late"))
    agent.start()
    agent.wait_gone("single")
    agent.wait_ready("late")
    held = {"pair": given("2-3", "1"), "best": given("0-1"), "late": given("0-1")}
    gets(cri, held)
    assert cri.container_pid(main_id(cri, "pair")) == before["pair"]
    state = json.loads((agent.root / "cpu_manager_state").read_text())
    assert (state["policyName"], state["defaultCpuSet"]) == ("static", "0-1")
    assert [list(each.values()) for each in state["entries"].values()] == [["2-3"]]

    # The container's own end: its next one has the same.
    cri.kill(main_id(cri, "pair"))
    agent.wait("pair", partial(is_restarted, 1), what="restarted")
    assert kernel(cri, "pair") == given("2-3", "1")


def is_restarted(times: int, pod: Json) -> bool:
    return is_ready(pod) and container_status(pod, "main")["restartCount"] == times


def test_what_fits_on_no_single_node_is_refused_and_costs_nobody_anything(
    agent: Agent, cri: CriClient
) -> None:
    assert run(agent, cri, pod("best")) == given("0-3")
    said = ("TopologyAffinityError", "Resources cannot be allocated with Topology locality")
    for name, cpu, memory in (("wide", "3", "64Mi"), ("deep", "1", "2500Mi")):
        reason, message = refusal(agent, certain(name, cpu, memory))
        assert (reason, said[1] in message) == (said[0], True), message
        end(agent, name)
    assert kernel(cri, "best") == given("0-3")
    assert run(agent, cri, certain("pair", "2")) == given("2-3", "1")


def test_memory_and_huge_pages_are_on_the_node_of_the_cpus(agent: Agent, cri: CriClient) -> None:
    fill = "head -c 16777216 /dev/zero > /dev/shm/filled"
    # Only node 1 has huge pages.
    assert run(agent, cri, certain("store", "1", "300Mi", fill, **{"hugepages-2Mi": "4Mi"})) == (
        given("2", "1")
    )
    store = cgroup(cri, "store")
    # The pod is limited; containerd leaves its containers without, unless it is told otherwise.
    assert read(store.parent, "hugetlb.2MB.max") == str(4 * MI)
    eventually(lambda: on_nodes(store, "shmem")[1] >= 16 * MI, what="it has written its memory")
    assert on_nodes(store, "shmem")[0] == 0
    assert on_nodes(store, "anon")[0] == 0
    # What is left of node 1 is too little, though both its CPU and the memory of both would do.
    assert run(agent, cri, certain("large", "1", "1700Mi", fill)) == given("1", "0")
    large = cgroup(cri, "large")
    eventually(lambda: on_nodes(large, "shmem")[0] >= 16 * MI, what="it has written its memory")
    assert on_nodes(large, "shmem")[1] == 0
    drawn = " ".join(agent.cli("topology").split())
    assert "default/large-node main CPUs 1; memory 1.7Gi on 0" in drawn
    assert "default/store-node main CPUs 2; " in drawn
    assert "memory 300Mi on 1" in drawn
    assert "hugepages-2Mi 4Mi on 1" in drawn


def on_nodes(cgroup: Path, kind: str) -> list[int]:
    """Return the bytes of this kind of memory on each NUMA node."""
    for line in (cgroup / "memory.numa_stat").read_text().splitlines():
        name, *counts = line.split()
        if name == kind:
            return [int(count.partition("=")[2]) for count in counts]
    raise AssertionError(f"no {kind} in memory.numa_stat")


def test_init_containers_and_containers_have_the_same_cpus_one_after_the_other(
    agent: Agent, cri: CriClient
) -> None:
    same = {"cpu": "2", "memory": "64Mi"}
    first = sized("first", requests=same, limits=same)
    first["command"] = ["sh", "-c", "grep _allowed_list /proc/self/status"]
    main = sized("main", requests=same, limits=same)
    agent.put(pod("steps", main, initContainers=[first]))
    agent.wait_ready("steps")
    assert kernel(cri, "steps") == given("2-3", "1")
    told = agent.cli("logs", "steps", "-c", "first")
    assert told.split() == ["Cpus_allowed_list:", "2-3", "Mems_allowed_list:", "1"]


def test_reserved_cpus_are_nobodys_and_cores_are_whole_where_the_options_say_so(
    make_agent: MakeAgent, cri: CriClient
) -> None:
    options = {"full-pcpus-only": "true", "strict-cpu-reservation": "true"}
    agent = make_agent(
        config={
            "cpuManagerPolicy": "static",
            "cpuManagerPolicyOptions": options,
            "reservedSystemCPUs": "0",
        }
    )
    agent.start()
    assert run(agent, cri, pod("best")) == given("1-3")
    reason, message = refusal(agent, certain("odd", "1"))
    assert reason == "SMTAlignmentError"
    assert "requested 1 cpus not multiple cpus per core = 2" in message
    assert run(agent, cri, certain("pair", "2")) == given("2-3")
    gets(cri, {"best": given("1")})

    # An agent that comes back does not trust what it cannot know: it tells the runtime once more.
    agent.kill()
    (cgroup(cri, "best") / "cpuset.cpus").write_text("0-3")
    assert kernel(cri, "best") == given("0-3")
    agent.start()
    gets(cri, {"best": given("1"), "pair": given("2-3")})

    # Another policy would give away what is in use.
    agent.kill()
    agent.config["cpuManagerPolicy"] = "none"
    agent.config["cpuManagerPolicyOptions"] = {}
    refused = agent.run_again()
    assert refused.returncode != 0
    assert "please drain this node and delete the CPU manager checkpoint file" in (
        refused.stdout + refused.stderr
    )
    assert kernel(cri, "pair") == given("2-3")
