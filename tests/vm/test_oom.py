"""What cgroup v2 alone has: the kernel kills a container whole when its memory runs out."""

from __future__ import annotations

from tests.containerd.conftest import MakeAgent
from tests.containerd.test_oom import LIMIT, OUTLIVES
from tests.harness import container, container_status, pod


def test_a_child_that_is_killed_for_memory_takes_its_container_with_it(
    make_agent: MakeAgent,
) -> None:
    agent = make_agent()
    agent.start()
    child = container("main", OUTLIVES, resources=LIMIT)
    agent.put(pod("whole", child, restartPolicy="Never"))
    done = agent.wait("whole", lambda p: p["status"].get("phase") == "Failed", what="Failed")
    ended = container_status(done, "main")["state"]["terminated"]
    assert (ended["reason"], ended["exitCode"]) == ("OOMKilled", 137)
    agent.drop("whole")
    agent.wait_gone("whole")
