"""Containers that end: jobs, crash loops, deadlines, and what they leave to say."""

from __future__ import annotations

import time
from itertools import pairwise

import grpc
import pytest

from tests.containerd.conftest import FAST_BACKOFF
from tests.harness import (
    Agent,
    CriClient,
    Json,
    condition,
    container,
    container_status,
    forever,
    is_ready,
    live_containers,
    pod,
)
from tests.harness.machine import PATIENCE

WORK: Json = {"volumes": [{"name": "work", "emptyDir": {}}]}
MOUNT = [{"name": "work", "mountPath": "/work"}]


def waiting(pod: Json) -> Json:
    state: Json = container_status(pod, "main").get("state", {}).get("waiting", {})
    return state


def restarts(pod: Json) -> int:
    return int(container_status(pod, "main").get("restartCount", 0))


def terminated(pod: Json, name: str = "main") -> Json:
    state: Json = container_status(pod, name).get("state", {}).get("terminated", {})
    return state


def test_a_job_like_pod_is_retried_until_it_succeeds(agent: Agent) -> None:
    count = "n=$(cat /work/n || echo 0); echo $((n + 1)) > /work/n; exit $((n < 2))"
    job = container("main", count, volumeMounts=MOUNT)
    agent.put(pod("job", job, restartPolicy="OnFailure", **WORK))
    done = agent.wait("job", lambda p: p["status"].get("phase") == "Succeeded", what="Succeeded")
    status = container_status(done, "main")
    assert status["restartCount"] == 2
    assert (terminated(done)["reason"], terminated(done)["exitCode"]) == ("Completed", 0)
    assert condition(done, "Ready") == "False"
    assert condition(done, "Initialized") == "True"
    reasons = {c["type"]: c.get("reason") for c in done["status"]["conditions"]}
    assert reasons["Ready"] == "PodCompleted"
    agent.drop("job")
    agent.wait_gone("job")


def test_a_failed_container_that_is_never_restarted_fails_its_pod(agent: Agent) -> None:
    agent.put(pod("fails", container("main", "exit 7"), restartPolicy="Never"))
    done = agent.wait("fails", lambda p: p["status"].get("phase") == "Failed", what="Failed")
    assert (terminated(done)["reason"], terminated(done)["exitCode"]) == ("Error", 7)
    assert container_status(done, "main")["restartCount"] == 0
    agent.drop("fails")
    agent.wait_gone("fails")


def test_a_crash_loop_starts_at_once_then_doubles_its_delay(agent: Agent, cri: CriClient) -> None:
    agent.put(pod("crash", container("main", "exit 3")))
    lives = collect_lives(cri, "crash-node", wanted=5)
    gaps = [later[0] - earlier[1] for earlier, later in pairwise(lives)]
    # The first restart waits for nothing, each other one for twice the time of the one before.
    for gap, delay in zip(gaps[1:], (1, 2, 4), strict=True):
        assert gap >= delay * FAST_BACKOFF - 0.05, gaps
    uid = agent.pods()["crash"]["metadata"]["uid"]
    looping = agent.wait("crash", lambda p: restarts(p) >= 4 and waiting(p), what="waiting")
    delay = 2 ** (restarts(looping) - 1) * FAST_BACKOFF
    said = f"back-off {delay:g}s restarting failed container=main pod=crash-node_default({uid})"
    assert waiting(looping) == {"reason": "CrashLoopBackOff", "message": said}
    assert looping["status"]["phase"] == "Running"
    agent.drop("crash")
    agent.wait_gone("crash")


def collect_lives(cri: CriClient, name: str, wanted: int) -> list[tuple[float, float]]:
    """Return start and end, in the runtime's seconds, of a container's first `wanted` lives.

    Asked for as they pass: the agent removes all but the last dead one.
    """
    lives: dict[int, tuple[float, float]] = {}
    deadline = time.monotonic() + 120 * PATIENCE
    while len(lives) < wanted:
        assert time.monotonic() < deadline, lives
        for found in cri.containers():
            if found.labels["io.kubernetes.pod.name"] != name or found.metadata is None:
                continue
            try:
                status = cri.container_status(found.id)
            except grpc.RpcError:  # removed since
                continue
            if status.finished_at:
                lives[found.metadata.attempt] = (status.started_at / 1e9, status.finished_at / 1e9)
        time.sleep(0.05)
    assert sorted(lives) == list(range(wanted))
    return [lives[attempt] for attempt in sorted(lives)]


def test_a_pod_past_its_deadline_fails(agent: Agent) -> None:
    agent.put(pod("deadline", activeDeadlineSeconds=2, restartPolicy="Never"))
    agent.wait_ready("deadline")
    done = agent.wait("deadline", lambda p: p["status"]["phase"] == "Failed", what="Failed")
    assert done["status"]["reason"] == "DeadlineExceeded"
    agent.drop("deadline")
    agent.wait_gone("deadline")


@pytest.mark.parametrize(
    ("name", "script", "fields", "message"),
    [
        ("said", "echo -n last words > /dev/termination-log; exit 1", {}, "last words"),
        (
            "logged",
            "echo only in the log; exit 1",
            {"terminationMessagePolicy": "FallbackToLogsOnError"},
            "only in the log\n",
        ),
        (
            "elsewhere",
            "echo -n there > /tmp/said; exit 1",
            {"terminationMessagePath": "/tmp/said"},
            "there",
        ),
    ],
)
def test_the_termination_message_is_in_the_status(
    agent: Agent, name: str, script: str, fields: Json, message: str
) -> None:
    agent.put(pod(name, container("main", script, **fields), restartPolicy="Never"))
    done = agent.wait(name, lambda p: p["status"].get("phase") == "Failed", what="Failed")
    assert terminated(done)["message"] == message
    agent.drop(name)
    agent.wait_gone(name)


def test_a_container_out_of_memory_is_said_to_be(agent: Agent) -> None:
    greedy = container("main", "tail /dev/zero", resources={"limits": {"memory": "16Mi"}})
    agent.put(pod("greedy", greedy, restartPolicy="Never"))
    done = agent.wait("greedy", lambda p: p["status"].get("phase") == "Failed", what="Failed")
    assert (terminated(done)["reason"], terminated(done)["exitCode"]) == ("OOMKilled", 137)
    agent.drop("greedy")
    agent.wait_gone("greedy")


def test_a_failing_init_container_keeps_the_mains_waiting(agent: Agent) -> None:
    agent.put(pod("stuck", initContainers=[container("setup", "exit 1")]))
    stuck = agent.wait(
        "stuck", lambda p: container_status(p, "setup").get("restartCount", 0) >= 1, what="retried"
    )
    assert stuck["status"]["phase"] == "Pending"
    assert container_status(stuck, "main")["state"]["waiting"]["reason"] == "PodInitializing"
    assert condition(stuck, "Initialized") == "False"
    agent.drop("stuck")
    agent.wait_gone("stuck")


def test_containers_restart_as_their_own_policy_says(agent: Agent, cri: CriClient) -> None:
    agent.put(
        pod(
            "mixed",
            container("main", forever(), restartPolicy="Always"),
            container("once", "exit 4", restartPolicy="Never"),
            restartPolicy="Never",
        )
    )
    agent.wait("mixed", lambda p: "terminated" in container_status(p, "once").get("state", {}))
    cri.kill(live_containers(cri, "mixed-node")["main"])
    mixed = agent.wait("mixed", lambda p: container_status(p, "main")["restartCount"] == 1)
    assert not is_ready(mixed)
    assert container_status(mixed, "once")["restartCount"] == 0
    agent.drop("mixed")
    agent.wait_gone("mixed")
