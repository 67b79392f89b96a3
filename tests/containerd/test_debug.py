"""`kubelet-trio debug` on real containers."""

from __future__ import annotations

import os
import pty
import subprocess
import termios
import time

import pytest

from tests.containerd.conftest import MakeAgent
from tests.harness import (
    Agent,
    CommandError,
    CriClient,
    Json,
    container_status,
    eventually,
    live_containers,
    pod,
)
from tests.harness.agent import PROGRAM
from tests.harness.images import BUSYBOX

SHELL = ("--image", BUSYBOX, "--image-pull-policy", "Never")


@pytest.fixture(scope="module")
def web(agent: Agent) -> Agent:
    agent.put(pod("web"))
    agent.wait_ready("web")
    return agent


def debug(agent: Agent, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(PROGRAM), "--root-dir", str(agent.root), "debug", *arguments],
        input=given,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_it_sees_the_processes_of_its_target(web: Agent, cri: CriClient) -> None:
    before = live_containers(cri, "web-node")
    script = "tr '\\0' ' ' < /proc/1/cmdline; echo; readlink /proc/self/ns/pid; cat; exit 7"
    ran = debug(web, "web", "-i", *SHELL, "--target", "main", "--", "sh", "-c", script, given="hi")
    first, namespace, rest = ran.stdout.splitlines()
    assert "sh -c" in first
    assert namespace == web.cli("exec", "web", "--", "readlink", "/proc/1/ns/pid").strip()
    assert rest == "hi"
    assert ran.returncode == 7
    assert "Defaulting debug container name to debugger-" in ran.stderr
    assert live_containers(cri, "web-node") == before
    assert container_status(web.pods()["web"], "main")["restartCount"] == 0


def test_without_a_target_it_has_processes_of_its_own(web: Agent) -> None:
    ran = debug(web, "web", "-i", "--", "sh", "-c", "readlink /proc/self/ns/pid; sleep 0.2")
    assert ran.returncode == 0, ran.stderr
    assert 'of container "main"' in ran.stderr
    assert ran.stdout.strip() != web.cli("exec", "web", "--", "readlink", "/proc/1/ns/pid").strip()


def test_what_ends_at_once_is_not_lost(web: Agent) -> None:
    for _ in range(5):
        ran = debug(web, "web", "-i", *SHELL, "--", "sh", "-c", "echo gone; exit 3")
        assert (ran.stdout, ran.returncode) == ("gone\n", 3), ran.stderr


def test_mistakes_are_told_before_anything_is_made(web: Agent) -> None:
    with pytest.raises(CommandError, match=r"--target other: the pod has: main"):
        web.cli("debug", "web", *SHELL, "--target", "other")
    with pytest.raises(CommandError, match=r"ephemeralContainers\[\d+\].name: Duplicate value"):
        web.cli("debug", "web", *SHELL, "-c", "main")
    with pytest.raises(CommandError, match="name an image"):
        web.cli("debug", "web")


def test_a_terminal_is_the_containers(web: Agent) -> None:
    ours, theirs = pty.openpty()
    command = [str(PROGRAM), "--root-dir", str(web.root), "debug", "web", "-it", *SHELL]
    with subprocess.Popen(
        [*command, "--", "sh"], stdin=theirs, stdout=theirs, stderr=subprocess.PIPE
    ) as running:
        os.close(theirs)
        # Raw since it is attached: what was typed before is discarded (TCSAFLUSH of tcsetattr(3)).
        eventually(lambda: not termios.tcgetattr(ours)[3] & termios.ICANON, what="a raw terminal")
        os.write(ours, b"tty; echo $((6 * 7)); exit 5\n")
        assert running.wait(30) == 5
        seen = os.read(ours, 4096)
    os.close(ours)
    assert b"/dev/pts/0\r\n42\r\n" in seen


def test_a_restarted_agent_finds_it_and_restarts_nothing(
    make_agent: MakeAgent, cri: CriClient
) -> None:
    agent = make_agent()
    agent.start()
    agent.put(pod("kept"))
    agent.wait_ready("kept")
    command = ("sleep", "1000")
    assert agent.cli("debug", "kept", *SHELL, "-c", "probe", "--", *command).strip() == "probe"
    agent.wait("kept", lambda p: "running" in ephemeral(p, "probe")["state"], what="probe to run")
    before = live_containers(cri, "kept-node")
    assert set(before) == {"main", "probe"}
    agent.kill()
    agent.start()
    found = agent.wait_ready("kept")
    assert "running" in ephemeral(found, "probe")["state"]
    time.sleep(2)
    assert live_containers(cri, "kept-node") == before
    assert "probe" in agent.cli("describe", "pod", "kept")
    assert agent.cli("exec", "kept", "-c", "probe", "--", "echo", "here") == "here\n"
    cri.kill(before["probe"])
    agent.wait("kept", lambda p: "terminated" in ephemeral(p, "probe")["state"], what="its end")
    assert set(live_containers(cri, "kept-node")) == {"main"}
    agent.drop("kept")
    agent.wait_gone("kept")
    agent.put(pod("kept"))
    again = agent.wait_ready("kept")
    assert "ephemeralContainers" not in again["spec"]


def ephemeral(found: Json, name: str) -> Json:
    statuses = found["status"].get("ephemeralContainerStatuses", [])
    return next((s for s in statuses if s["name"] == name), {"state": {}})
