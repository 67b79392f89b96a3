"""The agent dies, the runtime goes away: containers do not notice, and all is found again."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from tests.containerd.conftest import MakeAgent
from tests.harness import (
    Agent,
    Containerd,
    CriClient,
    container,
    container_status,
    eventually,
    forever,
    is_ready,
    live_containers,
    pod,
)

MANY = 30
ASKED = {"ContainerStatus", "PodSandboxStatus"}  # of one container or sandbox
CHANGES = {
    f"{verb}{what}"
    for what in ("Container", "PodSandbox")
    for verb in ("Run", "Create", "Start", "Stop", "Remove")
}
KILLS = 20
OUTAGE = 20.0  # seconds


@pytest.fixture
def fresh_agent(make_agent: MakeAgent) -> Agent:
    """An agent of the test's own, running."""
    agent = make_agent()
    agent.start()
    return agent


@pytest.fixture(autouse=True)
def containerd_runs(containerd: Containerd) -> Iterator[None]:
    """Whatever a test did to containerd, the next one finds it running."""
    yield
    containerd.stop()
    containerd.start()


def all_starts(cri: CriClient) -> dict[str, int]:
    """Return when each running container was started: id -> ns."""
    return {c.id: cri.container_status(c.id).started_at for c in cri.containers() if c.state == 1}


def test_a_killed_agent_finds_all_its_pods_and_restarts_only_what_dies(
    fresh_agent: Agent, containerd: Containerd, cri: CriClient
) -> None:
    agent = fresh_agent
    names = [f"many-{n}" for n in range(MANY)]
    for name in names:
        agent.put(pod(name))
    for name in names:
        agent.wait_ready(name, within=60)
    before, statuses = all_starts(cri), agent.pods()
    assert len(before) == MANY
    agent.kill()
    assert all_starts(cri) == before
    called = containerd.calls()
    agent.start()
    for name in names:
        adopted = agent.wait_ready(name)
        for field in ("containerStatuses", "podIPs", "conditions", "hostIPs"):
            assert adopted["status"][field] == statuses[name]["status"][field], field
    made = containerd.calls() - called
    assert all_starts(cri) == before
    assert made["ListContainers"] > 0
    assert not made.keys() & CHANGES, made
    # Each pod is asked for by itself a few times, however many others there are.
    assert all(made[method] <= 3 * MANY for method in ASKED), made
    for name in names[:KILLS]:
        cri.kill(live_containers(cri, f"{name}-node")["main"])
    for name in names[:KILLS]:
        agent.wait(name, lambda p: is_ready(p) and container_status(p, "main")["restartCount"] == 1)


def test_a_stopped_agent_leaves_containers_running_and_says_goodbye(
    fresh_agent: Agent, cri: CriClient
) -> None:
    agent = fresh_agent
    agent.put(pod("stays"))
    agent.wait_ready("stays")
    before = all_starts(cri)
    assert agent.stop() == 0
    agent.wait_notified("STOPPING=1")
    assert all_starts(cri) == before
    agent.start()
    agent.wait_ready("stays")
    assert all_starts(cri) == before


def test_a_pod_whose_file_went_while_the_agent_was_down_is_taken_down(
    fresh_agent: Agent, cri: CriClient
) -> None:
    agent = fresh_agent
    agent.put(pod("goes"))
    agent.put(pod("keeps"))
    agent.wait_ready("goes")
    agent.wait_ready("keeps")
    agent.kill()
    agent.drop("goes")
    kept = live_containers(cri, "keeps-node")
    agent.start()
    eventually(
        lambda: not [s for s in cri.sandboxes() if s.metadata and s.metadata.name == "goes-node"],
        what="goes to be gone",
    )
    agent.wait_gone("goes")
    assert live_containers(cri, "keeps-node") == kept


def test_restart_counts_survive_the_agent(fresh_agent: Agent, cri: CriClient) -> None:
    agent = fresh_agent
    agent.put(pod("counted"))
    agent.wait_ready("counted")
    cri.kill(live_containers(cri, "counted-node")["main"])
    counted = agent.wait(
        "counted", lambda p: is_ready(p) and container_status(p, "main")["restartCount"] == 1
    )
    agent.kill()
    agent.start()
    again = agent.wait_ready("counted")
    assert container_status(again, "main") == container_status(counted, "main")
    cri.kill(live_containers(cri, "counted-node")["main"])
    agent.wait("counted", lambda p: container_status(p, "main")["restartCount"] == 2)


def test_a_teardown_is_resumed_by_the_next_agent(fresh_agent: Agent, cri: CriClient) -> None:
    agent = fresh_agent
    slow = "trap 'sleep 2; exit 0' TERM; while :; do sleep 1000 & wait $!; done"
    agent.put(pod("half", container("main", slow), terminationGracePeriodSeconds=20))
    agent.wait_ready("half")
    agent.drop("half")
    agent.wait("half", lambda p: p["metadata"].get("deletionTimestamp"), what="stopping")
    agent.kill()
    agent.start()
    eventually(lambda: not cri.sandboxes(), what="the sandbox to be gone")
    agent.wait_gone("half")


def test_a_runtime_down_at_boot_keeps_nothing_from_coming_up(
    make_agent: MakeAgent, containerd: Containerd
) -> None:
    agent = make_agent()
    agent.put(pod("patient"))
    containerd.stop()
    agent.start()
    status, body = agent.healthz("/readyz")
    assert status != 200, body
    assert "runtime" in body
    assert agent.healthz("/livez")[0] == 200
    containerd.start()
    agent.wait_ready("patient")
    eventually(lambda: agent.healthz("/readyz")[0] == 200, what="readyz to recover")


def test_an_outage_of_the_runtime_is_told_and_survived(
    fresh_agent: Agent, containerd: Containerd, cri: CriClient
) -> None:
    agent = fresh_agent
    agent.put(pod("before"))
    agent.put(pod("dies"))
    agent.wait_ready("before")
    agent.wait_ready("dies")
    kept = live_containers(cri, "before-node")
    victim = cri.container_pid(live_containers(cri, "dies-node")["main"])
    pid = agent.pid
    assert agent.healthz("/readyz")[0] == 200
    containerd.stop()
    ends = time.monotonic() + OUTAGE
    eventually(lambda: agent.healthz("/readyz")[0] != 200, what="health to say so")
    assert "runtime" in agent.healthz("/readyz")[1]
    os.kill(victim, signal.SIGKILL)
    agent.put(pod("during", container("main", forever())))
    time.sleep(max(0.0, ends - time.monotonic()))  # the outage itself is what is tested
    assert agent.is_running
    containerd.start()
    agent.wait_ready("during")
    agent.wait("dies", lambda p: is_ready(p) and container_status(p, "main")["restartCount"] == 1)
    eventually(lambda: agent.healthz("/readyz")[0] == 200, what="health to recover")
    assert agent.pid == pid
    assert live_containers(cri, "before-node") == kept
    assert container_status(agent.wait_ready("before"), "main")["restartCount"] == 0
