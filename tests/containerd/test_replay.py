"""A real node's recording, replayed without it."""

from __future__ import annotations

from kubelet_trio.replay import replay_recording
from tests.containerd.conftest import MakeAgent
from tests.harness import container, container_status, pod
from tests.harness.pods import NODE


def test_a_node_decides_again_as_it_did(make_agent: MakeAgent) -> None:
    agent = make_agent(arguments=("--crash-loop-backoff-base", "2s"))
    agent.start()
    agent.put(pod("steady", terminationGracePeriodSeconds=1))
    agent.put(pod("crash", container("main", "sleep 0.5; exit 3"), terminationGracePeriodSeconds=1))
    agent.wait_ready("steady")
    agent.wait(
        "crash",
        lambda shown: container_status(shown, "main")["restartCount"] >= 2,
        what="restarted twice",
    )
    agent.drop("steady")
    agent.wait_gone("steady")
    agent.kill()
    agent.start()
    agent.wait_ready("crash")
    file = agent.base / "incident.rec"
    assert "entries" in agent.cli("record", "save", str(file))

    replay_recording(file).check()
    assert "it decides as it did" in agent.cli("replay", str(file))
    followed = agent.cli("replay", str(file), "--pod", f"default/crash-{NODE}")
    assert "steady" not in followed
