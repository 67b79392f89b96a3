"""The machine's own logind announces a shutdown: pods end in order, then it goes on.

What a shutdown would start is replaced by a target that does nothing, so the machine stays up,
and logind calls the shutdown off when that target has been reached.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.containerd.conftest import MakeAgent
from tests.harness import condition, container, eventually, forever, pod
from tests.harness.machine import PATIENCE

TARGET = Path("/run/systemd/system/poweroff.target")
NOTHING = "[Unit]\nDescription=A shutdown for tests\nDefaultDependencies=no\nAllowIsolate=yes\n"
PERIOD = 60
LOGIND = ("org.freedesktop.login1", "/org/freedesktop/login1", "org.freedesktop.login1.Manager")
POWER_OFF = ("busctl", "call", *LOGIND, "PowerOff")


def systemctl(*arguments: str) -> None:
    subprocess.run(["systemctl", *arguments], check=True)


@pytest.fixture
def harmless() -> Iterator[None]:
    """Have a poweroff end nothing."""
    TARGET.write_text(NOTHING)
    systemctl("daemon-reload")
    yield
    systemctl("stop", "poweroff.target")
    TARGET.unlink()
    systemctl("daemon-reload")


def inhibitors() -> str:
    command = ["systemd-inhibit", "--list", "--no-pager", "--no-legend"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True)
    return listed.stdout


@pytest.mark.usefixtures("harmless")
def test_a_shutdown_waits_until_pods_have_ended(make_agent: MakeAgent) -> None:
    agent = make_agent(
        config={
            "shutdownGracePeriod": f"{PERIOD}s",
            "shutdownGracePeriodCriticalPods": "10s",
        }
    )
    agent.start()
    agent.put(pod("last", container("main", forever()), terminationGracePeriodSeconds=30))
    agent.wait_ready("last")
    eventually(lambda: "kubelet" in inhibitors(), what="a delay lock")
    assert "delay" in inhibitors()

    subprocess.run([*POWER_OFF, "b", "false"], check=True)
    ended = agent.wait("last", lambda p: p["status"].get("phase") == "Failed", what="Failed")
    assert ended["status"]["reason"] == "Terminated"
    assert condition(ended, "DisruptionTarget") == "True"
    # The lock was given back by itself: the shutdown went on before logind gave up on us.
    reached = ["systemctl", "is-active", "--quiet", "poweroff.target"]
    eventually(
        lambda: subprocess.run(reached, check=False).returncode == 0,
        within=PERIOD / PATIENCE,
        what="the shutdown goes on",
    )
    kept = json.loads((agent.root / "graceful_node_shutdown_state").read_text())
    assert kept["startTime"]
    assert kept["endTime"]
    # logind has nothing left to do and calls it off; the agent guards the next one.
    eventually(lambda: "shutdown.called_off" in agent.output.read_text(), what="called off")
    eventually(lambda: "kubelet" in inhibitors(), what="a new lock")
