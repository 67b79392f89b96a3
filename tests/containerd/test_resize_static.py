"""Static pods that change size by an edit of their manifest, while the agent is killed at any step.

The API server refuses a resize of static pods; an edit of the amounts alone is one here.
"""

from __future__ import annotations

import random
import time
from functools import partial

import pytest

from tests.containerd.resizing import (
    IN_PROGRESS,
    Inside,
    container_limits,
    inside,
    pod_limits,
    pod_of,
    problems_of,
    recorded,
    res,
    resize_conditions,
    sized,
    wanted_of,
)
from tests.harness import (
    Agent,
    CriClient,
    Json,
    container_status,
    eventually,
    live_containers,
    pod,
)
from tests.harness.pods import NODE

SMALL = [res(f"{n}0m/{n}00m", f"{8 * n}Mi/{16 * n}Mi") for n in range(2, 8)]
LARGE = [res(f"{n}5m/{n}50m", f"{8 * n}Mi/{24 * n}Mi") for n in range(2, 8)]
MIXED = [res(f"{n}0m/{n}00m", f"{8 * n}Mi/{16 * n}Mi") for n in (7, 5, 2, 3, 6, 4)]


def has(wanted: list[Json], pod: Json) -> bool:
    """Whether the pod's status shows these resources, and no resize."""
    shown = [container_status(pod, f"c{n}").get("resources") for n in range(len(wanted))]
    return shown == wanted and not resize_conditions(pod)


def restart_counts(pod: Json) -> list[int]:
    return [status["restartCount"] for status in pod["status"]["containerStatuses"]]


def reasons(agent: Agent, name: str) -> list[str]:
    """Return the reasons of a pod's events about resizes, as they came."""
    return [
        e["reason"]
        for e in agent.ask("/events")["items"]
        if e["involvedObject"]["name"] == f"{name}-{NODE}" and e["reason"].startswith("Resize")
    ]


def run(agent: Agent, cri: CriClient, manifest: Json) -> tuple[str, Inside]:
    """Run a pod; return its UID and its containers."""
    name = manifest["metadata"]["name"]
    agent.put(manifest)
    return agent.wait_ready(name)["metadata"]["uid"], inside(cri, f"{name}-{NODE}")


def test_an_edit_of_the_manifest_resizes_the_running_pod(agent: Agent, cri: CriClient) -> None:
    uid, now = run(agent, cri, pod_of("edited", *SMALL))
    assert now.differences(wanted_of(*SMALL)) == {}
    for wanted in (LARGE, SMALL, MIXED):
        with recorded(cri, f"edited-{NODE}"):
            agent.put(pod_of("edited", *wanted))
            done = agent.wait("edited", partial(has, wanted), what="resized")
        assert done["metadata"]["uid"] == uid
        assert restart_counts(done) == [0] * 6
        assert problems_of(done) == []
        assert now.differences(wanted_of(*wanted)) == {}
    assert reasons(agent, "edited") == ["ResizeStarted", "ResizeCompleted"] * 3
    agent.drop("edited")
    agent.wait_gone("edited")


def test_more_than_the_node_has_leaves_a_static_pod_as_it_is(agent: Agent, cri: CriClient) -> None:
    uid, now = run(agent, cri, pod_of("toomuch", res("50m")))
    with recorded(cri, f"toomuch-{NODE}"):
        agent.put(pod_of("toomuch", res("900")))
        pending = agent.wait("toomuch", resize_conditions, what="pending")
        ((kind, (reason, message, _)),) = resize_conditions(pending).items()
        assert (kind, reason) == ("PodResizePending", "Infeasible")
        assert "Node didn't have enough capacity: cpu, requested: 900000" in message
        agent.put(pod_of("toomuch", res("50m")))
        back = agent.wait("toomuch", partial(has, [res("50m")]), what="as it was")
    assert back["metadata"]["uid"] == uid
    assert now.differences(wanted_of(res("50m"))) == {}
    agent.drop("toomuch")
    agent.wait_gone("toomuch")


@pytest.mark.parametrize(("before", "after"), [(SMALL, LARGE), (LARGE, SMALL), (SMALL, MIXED)])
@pytest.mark.parametrize("steps", [0, 1, 2, 4, 6, 7])
def test_an_agent_killed_in_the_middle_is_continued_by_the_next(
    agent: Agent, cri: CriClient, before: list[Json], after: list[Json], steps: int
) -> None:
    uid, now = run(agent, cri, pod_of("killed", *before))
    with recorded(cri, f"killed-{NODE}"):
        wanted = wanted_of(*after)
        left = len(now.differences(wanted)) - steps
        agent.put(pod_of("killed", *after))
        eventually(
            lambda: len(now.differences(wanted)) <= max(left, 0),
            what=f"{steps} cgroups have their limits",
            every=0.001,
        )
        agent.kill()
        agent.start()
        done = agent.wait("killed", partial(has, after), what="resized")
    assert done["metadata"]["uid"] == uid
    assert restart_counts(done) == [0] * 6
    assert now.differences(wanted) == {}
    agent.drop("killed")
    agent.wait_gone("killed")


def test_many_kills_at_any_moment_leave_the_last_size(agent: Agent, cri: CriClient) -> None:
    seed = 11
    choose = random.Random(seed)
    uid, now = run(agent, cri, pod_of("often", *SMALL))
    wanted = SMALL
    with recorded(cri, f"often-{NODE}"):
        for _ in range(10):
            wanted = choose.choice([size for size in (SMALL, LARGE, MIXED) if size is not wanted])
            agent.put(pod_of("often", *wanted))
            time.sleep(choose.random() / 2)
            agent.kill()
            agent.start()
        done = agent.wait("often", partial(has, wanted), what=f"resized (seed {seed})")
    assert done["metadata"]["uid"] == uid
    assert restart_counts(done) == [0] * 6
    assert now.differences(wanted_of(*wanted)) == {}
    agent.drop("often")
    agent.wait_gone("often")


POLICY = [{"resourceName": "memory", "restartPolicy": "RestartContainer"}]


def two(first: Json, second: Json) -> Json:
    return pod("restarts", sized("c0", first, resizePolicy=POLICY), sized("c1", second))


def all_run(seen: Json) -> bool:
    return all("running" in status["state"] for status in seen["status"]["containerStatuses"])


@pytest.mark.parametrize("moment", ["asked", "in progress", "stopped", "started"])
def test_a_restart_by_policy_happens_once_whenever_the_agent_is_killed(
    agent: Agent, cri: CriClient, moment: str
) -> None:
    before, after = res("50m/100m", "16Mi/32Mi"), res("60m/200m", "32Mi/64Mi")
    uid, _ = run(agent, cri, two(before, before))
    pod_name = f"restarts-{NODE}"
    first = live_containers(cri, pod_name)["c0"]

    def has_come() -> bool:
        live = live_containers(cri, pod_name)
        if moment == "stopped":
            return "c0" not in live
        return moment != "started" or live.get("c0", first) != first

    with recorded(cri, pod_name, restarts=["c0"]):
        agent.put(two(after, after))
        if moment == "in progress":
            agent.wait("restarts", lambda p: IN_PROGRESS in resize_conditions(p), what=moment)
        eventually(has_come, what=moment, every=0.001)
        agent.kill()
        agent.start()
        # It is told of the new size as soon as the container is created, before it is started.
        done = agent.wait(
            "restarts", lambda p: has([after, after], p) and all_run(p), what="resized"
        )
    assert done["metadata"]["uid"] == uid
    assert restart_counts(done) == [1, 0]
    limits = {"c0": container_limits(after), "c1": container_limits(after)}
    wanted = {**limits, "": pod_limits([after, after])}
    assert inside(cri, pod_name).differences(wanted) == {}
    agent.drop("restarts")
    agent.wait_gone("restarts")
