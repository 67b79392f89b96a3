"""Real memory limits: the main process is killed, or a child that it outlives."""

from __future__ import annotations

from pathlib import Path

import trio

from kubelet_trio.model import pod_uid
from tests.agent.node import ready
from tests.containerd.conftest import MakeAgent
from tests.harness import Agent, Containerd, Json, container, container_status, eventually, pod
from tests.harness.inside import api_pod, inside_agent

# On cgroup v2 a kill takes the whole container unless this is said; on v1 it is how it always is.
ONE_PROCESS: Json = {"singleProcessOOMKill": True}
LIMIT: Json = {"limits": {"memory": "40Mi"}}
# A child takes more than there is; the shell, which is the main process, goes on. dd asks once and
# then only writes: a victim that holds its memory map's lock could have the kernel take another.
OUTLIVES = "dd if=/dev/zero of=/dev/null bs=200M count=1; while true; do sleep 1; done"


def events(agent: Agent, reason: str, pod_name: str = "") -> list[Json]:
    found: list[Json] = [e for e in agent.ask("/events")["items"] if e["reason"] == reason]
    return [e for e in found if not pod_name or e["involvedObject"]["name"] == pod_name]


def test_a_child_that_is_killed_for_memory_is_told_while_its_container_goes_on(
    make_agent: MakeAgent,
) -> None:
    agent = make_agent(config=ONE_PROCESS)
    agent.start()
    agent.put(pod("child", container("main", OUTLIVES, resources=LIMIT)))
    name = agent.wait_ready("child")["metadata"]["name"]
    eventually(lambda: events(agent, "OOMKilling", name), what="OOMKilling")
    (event,) = events(agent, "OOMKilling", name)
    assert event["involvedObject"]["fieldPath"] == "spec.containers{main}"
    status = container_status(agent.pods()["child"], "main")
    assert status["restartCount"] == 0
    assert "running" in status["state"]
    assert events(agent, "SystemOOM") == []
    agent.drop("child")
    agent.wait_gone("child")
    agent.stop()  # the test of an agent inside has the same runtime and cgroups


def test_a_container_whose_main_process_is_killed_for_memory_says_so(
    make_agent: MakeAgent,
) -> None:
    agent = make_agent()
    agent.start()
    hog = container("main", "exec tail /dev/zero", resources=LIMIT)
    agent.put(pod("hog", hog, restartPolicy="Never"))
    done = agent.wait("hog", lambda p: p["status"].get("phase") == "Failed", what="Failed")
    ended = container_status(done, "main")["state"]["terminated"]
    assert (ended["reason"], ended["exitCode"]) == ("OOMKilled", 137)
    assert events(agent, "SystemOOM") == []
    agent.drop("hog")
    agent.wait_gone("hog")
    agent.stop()


async def test_it_is_told_where_the_kernels_log_cannot_be_read(
    containerd: Containerd, tmp_path: Path
) -> None:
    agent, feed = inside_agent(containerd, tmp_path, ONE_PROCESS, kernel_log=None)
    child = api_pod(pod("child", container("main", OUTLIVES, resources=LIMIT)))
    feed.put(child)

    def told() -> list[str]:
        return [e.message or "" for e in agent.events.events() if e.reason == "OOMKilling"]

    with trio.fail_after(240):
        async with trio.open_nursery() as nursery:
            await nursery.start(agent.run)
            while not told():  # noqa: ASYNC110  # nobody announces events
                await trio.sleep(0.1)
            (message,) = told()
            assert message.startswith("A process was killed: ")
            status = agent.pods.value[pod_uid(child)].status
            assert status is not None
            assert ready(status)
            assert [s.restartCount for s in status.containerStatuses or ()] == [0]
            await agent.remove_pods()
            nursery.cancel_scope.cancel()
