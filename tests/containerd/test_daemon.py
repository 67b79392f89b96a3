"""The agent as a process: what it refuses, tells systemd, owns, and does not load."""

from __future__ import annotations

import subprocess

import pytest

from kubelet_trio.cri import v1
from tests.containerd.conftest import MakeAgent
from tests.harness import (
    CriClient,
    eventually,
    live_containers,
    pod,
)
from tests.harness.leftovers import hierarchies


def refused(command: list[str], status: int = 1) -> str:
    """Run a command that must fail with this exit status and return what it said."""
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert ran.returncode == status, ran
    return ran.stderr + ran.stdout


def test_a_second_agent_on_the_same_root_directory_is_refused(make_agent: MakeAgent) -> None:
    agent = make_agent()
    agent.start()
    assert str(agent.root) in refused([*agent.command(), "--healthz-port", "0"])
    assert agent.is_running


def test_an_unknown_flag_is_refused_by_name(make_agent: MakeAgent) -> None:
    agent = make_agent()
    assert "--pod-manifest-pth" in refused([*agent.command(), "--pod-manifest-pth", "/x"], status=2)


def test_an_unknown_field_is_refused_by_name(make_agent: MakeAgent) -> None:
    agent = make_agent(config={"staticPodPth": "/x"})
    assert "staticPodPth" in refused(agent.command())


@pytest.mark.skipif(len(hierarchies()) == 1, reason="only where cgroups are v1")
def test_cgroup_v1_is_refused_unless_allowed(make_agent: MakeAgent) -> None:
    agent = make_agent(config={"failCgroupV1": True})
    assert "cgroup v1" in refused(agent.command()).lower()


def test_the_watchdog_is_fed(make_agent: MakeAgent) -> None:
    agent = make_agent(environment={"WATCHDOG_USEC": "400000"})
    agent.start()
    for _ in range(3):
        agent.wait_notified("WATCHDOG=1")


def test_run_once_starts_the_pods_and_leaves_them(make_agent: MakeAgent, cri: CriClient) -> None:
    agent = make_agent(arguments=("--runonce",))
    agent.put(pod("once"))
    ran = subprocess.run(agent.command(), capture_output=True, text=True, check=False, timeout=120)
    assert ran.returncode == 0, ran
    assert live_containers(cri, "once-node")


def sandbox(name: str, labels: dict[str, str]) -> v1.PodSandboxConfig:
    return v1.PodSandboxConfig(
        metadata=v1.PodSandboxMetadata(name=name, uid=name, namespace="default"),
        hostname=name,
        labels=labels,
        linux=v1.LinuxPodSandboxConfig(),
    )


def test_the_daemon_owns_what_has_kubernetes_labels_and_nothing_else(
    make_agent: MakeAgent, cri: CriClient
) -> None:
    labels = {
        "io.kubernetes.pod.name": "lost",
        "io.kubernetes.pod.namespace": "default",
        "io.kubernetes.pod.uid": "lost",
    }
    agent = make_agent()
    lost = cri.run_sandbox(sandbox("lost", labels))
    foreign = cri.run_sandbox(sandbox("foreign", {"app": "mine"}))
    agent.put(pod("own"))
    agent.start()
    agent.wait_ready("own")
    eventually(lambda: lost not in {s.id for s in cri.sandboxes()}, what="the lost pod to go")
    assert foreign in {s.id for s in cri.sandboxes()}


def test_nothing_is_removed_while_the_directory_cannot_be_read(
    make_agent: MakeAgent, cri: CriClient
) -> None:
    agent = make_agent()
    agent.put(pod("kept"))
    agent.start()
    agent.wait_ready("kept")
    before = live_containers(cri, "kept-node")
    agent.kill()
    away = agent.manifests.rename(agent.base / "away")
    agent.manifests.touch()  # a file that is no manifest: not an empty directory
    agent.start()
    eventually(agent.problems, what="the agent to say so")
    assert live_containers(cri, "kept-node") == before
    agent.manifests.unlink()
    away.rename(agent.manifests)
    agent.wait_ready("kept")
    assert live_containers(cri, "kept-node") == before
