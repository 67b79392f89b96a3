"""The command line against a living agent."""

from __future__ import annotations

import json
import os
import re
import selectors
import subprocess
import time
from importlib.metadata import version

import pytest
import yaml

from tests.harness import (
    Agent,
    CommandError,
    CriClient,
    container,
    container_status,
    eventually,
    forever,
    is_ready,
    live_containers,
    pod,
)

LINES = "i=1; while [ $i -le 5 ]; do echo line $i; i=$((i + 1)); done"


@pytest.fixture(scope="module")
def talker(agent: Agent, cri: CriClient) -> Agent:
    """The agent with two pods: `talk` (two containers, one restarted) and `quiet`."""
    agent.put(pod("talk", container("main", forever(LINES)), container("side", forever("echo hi"))))
    agent.put(pod("quiet"))
    agent.wait_ready("quiet")
    agent.wait_ready("talk")
    # Ready is started: it may not have said anything yet, and shall before it is killed.
    eventually(lambda: "line 5" in agent.cli("logs", "talk-node", "-c", "main"))
    eventually(lambda: "hi" in agent.cli("logs", "talk-node", "-c", "side"))
    cri.kill(live_containers(cri, "talk-node")["side"])
    agent.wait("talk", lambda p: is_ready(p) and container_status(p, "side")["restartCount"] == 1)
    eventually(lambda: agent.cli("logs", "talk-node", "-c", "side"))
    return agent


def rows(text: str) -> list[list[str]]:
    return [re.split(r"\s{2,}", line.strip()) for line in text.splitlines()]


def test_pods_is_a_table(talker: Agent) -> None:
    heading, *lines = rows(talker.cli("pods"))
    table = {line[heading.index("NAME")]: dict(zip(heading, line, strict=True)) for line in lines}
    assert table["talk-node"]["READY"] == "2/2"
    assert table["talk-node"]["STATUS"] == "Running"
    assert table["talk-node"]["RESTARTS"].startswith("1")
    assert table["quiet-node"]["READY"] == "1/1"


def test_pods_wide_shows_addresses(talker: Agent) -> None:
    ip = talker.pods()["quiet"]["status"]["podIP"]
    line = next(x for x in talker.cli("pods", "-o", "wide").splitlines() if "quiet-node" in x)
    assert ip in line.split()


def test_pods_in_yaml_and_json_are_the_same_list(talker: Agent) -> None:
    as_yaml = yaml.safe_load(talker.cli("pods", "-o", "yaml"))
    as_json = json.loads(talker.cli("pods", "-o", "json"))
    names = [[p["metadata"]["name"] for p in found["items"]] for found in (as_yaml, as_json)]
    assert names[0] == names[1]
    assert sorted(names[0]) == ["quiet-node", "talk-node"]


def test_describe_shows_containers_and_events(talker: Agent) -> None:
    text = talker.cli("describe", "pod", "talk-node")
    for word in ("Name:", "talk-node", "Namespace:", "main", "side", "Conditions:", "Events:"):
        assert word in text
    assert "Started" in text


def test_describing_no_such_pod_fails(talker: Agent) -> None:
    with pytest.raises(CommandError, match="absent"):
        talker.cli("describe", "pod", "absent")


def test_logs_of_a_container(talker: Agent) -> None:
    whole = [f"line {n}" for n in range(1, 6)]
    assert talker.cli("logs", "talk-node", "-c", "main").splitlines() == whole
    assert talker.cli("logs", "talk-node", "-c", "main", "--tail", "2").splitlines() == whole[3:]
    assert talker.cli("logs", "talk-node", "-c", "side").splitlines() == ["hi"]
    assert talker.cli("logs", "talk-node", "-c", "side", "--previous").splitlines() == ["hi"]
    assert talker.cli("logs", "talk-node", "-c", "main", "--since", "1h").splitlines() == whole


def test_logs_are_followed_to_the_containers_end(agent: Agent) -> None:
    agent.put(
        pod("follow", container("main", "echo one; sleep 1; echo two"), restartPolicy="Never")
    )
    agent.wait("follow", lambda p: container_status(p, "main").get("started"), what="started")
    with agent.open_cli("logs", "-f", "follow-node") as following:
        out, _ = following.communicate(timeout=60)
    assert out.splitlines() == ["one", "two"]
    agent.drop("follow")
    agent.wait_gone("follow")


def test_a_watch_prints_changes_as_they_come(agent: Agent) -> None:
    with agent.open_cli("pods", "-w") as watching:
        agent.put(pod("watched"))
        agent.wait_ready("watched")
        read_until(watching, r"watched-node.*1/1\s+Running")
        watching.terminate()
    agent.drop("watched")
    agent.wait_gone("watched")


def read_until(process: subprocess.Popen[str], pattern: str, within: float = 60) -> str:
    """Read what a process prints until the pattern is in it."""
    assert process.stdout is not None
    text, deadline = "", time.monotonic() + within
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while not re.search(pattern, text):
            assert selector.select(deadline - time.monotonic()), f"no {pattern} in {text!r}"
            text += os.read(process.stdout.fileno(), 65536).decode()
    return text


def test_events_tell_a_pods_story_in_kubernetes_words(talker: Agent) -> None:
    text = talker.cli("events")
    for reason in ("Pulled", "Created", "Started"):
        assert reason in text
    assert "talk-node" in text


def test_the_tree_names_every_pods_worker(talker: Agent) -> None:
    tree = talker.cli("tree")
    uid = talker.pods()["talk"]["metadata"]["uid"]
    for name in ("kubelet", "health", "runtime", "pleg", "sources", f"default/talk-node@{uid}"):
        assert name in tree


def test_status_tells_runtime_and_health(talker: Agent) -> None:
    status = talker.cli("status")
    assert "containerd" in status


def test_version_is_the_packages(agent: Agent) -> None:
    assert version("kubelet-trio") in agent.cli("version")


def test_health_answers_while_all_is_well(agent: Agent) -> None:
    eventually(lambda: agent.healthz("/readyz")[0] == 200)
    for path in ("/healthz", "/livez", "/readyz"):
        status, body = agent.healthz(path)
        assert status == 200, body


def test_a_command_without_an_agent_says_where_it_looked(agent: Agent) -> None:
    with pytest.raises(CommandError, match="nowhere"):
        agent.cli("--root-dir", str(agent.base / "nowhere"), "pods")


def test_systemd_was_told_that_the_agent_is_ready(agent: Agent) -> None:
    assert "READY=1" in agent.notified
