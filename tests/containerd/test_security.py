"""Whom containers run as and what they may do, and pods that the node does not take."""

from __future__ import annotations

import os

import pytest

from tests.harness import (
    Agent,
    CriClient,
    Json,
    container,
    container_status,
    eventually,
    forever,
    is_ready,
    live_containers,
    pod,
)

PORTS = "net.ipv4.ip_unprivileged_port_start"


def process(cri: CriClient, name: str) -> dict[str, str]:
    """Return what the kernel says of the main container's first process."""
    main = live_containers(cri, f"{name}-node")["main"]
    status = cri.run(main, "cat", "/proc/1/status")
    lines = (line.partition(":") for line in status.splitlines())
    return {key: value.strip() for key, _, value in lines}


def failed(p: Json) -> bool:
    return bool(p["status"].get("phase") == "Failed")


def test_a_container_has_the_users_groups_and_rights_that_its_pod_names(
    agent: Agent, cri: CriClient
) -> None:
    own = {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "capabilities": {"drop": ["ALL"]},
    }
    of_pod = {
        "runAsUser": 1000,
        "runAsGroup": 2000,
        "supplementalGroups": [3000],
        "fsGroup": 4000,
        "seccompProfile": {"type": "RuntimeDefault"},
        "sysctls": [{"name": PORTS, "value": "81"}],
    }
    main = container("main", forever(), securityContext=own)
    agent.put(pod("safe", main, securityContext=of_pod))
    agent.wait_ready("safe")
    seen = process(cri, "safe")
    assert seen["Uid"].split() == ["1000"] * 4
    assert seen["Gid"].split() == ["2000"] * 4
    assert {"3000", "4000"} <= set(seen["Groups"].split())
    assert int(seen["CapBnd"], 16) == int(seen["CapEff"], 16) == 0
    assert seen["NoNewPrivs"] == "1"
    assert seen["Seccomp"] == "2"  # a filter
    running = live_containers(cri, "safe-node")["main"]
    assert cri.run(running, "cat", f"/proc/sys/{PORTS.replace('.', '/')}").strip() == "81"
    assert "ro" in cri.run(running, "sh", "-c", "grep ' / ' /proc/mounts").split()[3].split(",")
    agent.drop("safe")
    agent.wait_gone("safe")


def test_capabilities_are_added_and_privileged_has_them_all(agent: Agent, cri: CriClient) -> None:
    added = container(
        "main",
        forever(),
        securityContext={"capabilities": {"drop": ["ALL"], "add": ["NET_ADMIN"]}},
    )
    agent.put(pod("added", added))
    agent.put(pod("all", container("main", forever(), securityContext={"privileged": True})))
    agent.wait_ready("added")
    agent.wait_ready("all")
    net_admin = 1 << 12
    assert int(process(cri, "added")["CapEff"], 16) == net_admin
    everything = process(cri, "all")
    assert int(everything["CapEff"], 16) > net_admin
    assert everything["Seccomp"] == "0"
    for name in ("added", "all"):
        agent.drop(name)
        agent.wait_gone(name)


def test_an_image_that_would_run_as_root_does_not_where_that_is_forbidden(
    agent: Agent, cri: CriClient
) -> None:
    agent.put(pod("root", securityContext={"runAsNonRoot": True}))

    def refused(p: Json) -> bool:
        waiting = container_status(p, "main").get("state", {}).get("waiting", {})
        return bool(waiting.get("reason") == "CreateContainerConfigError")

    seen = agent.wait("root", refused, 30)
    message = container_status(seen, "main")["state"]["waiting"]["message"]
    assert message.startswith("container has runAsNonRoot and image will run as root")
    assert not live_containers(cri, "root-node")
    agent.drop("root")
    agent.wait_gone("root")


def test_a_runtime_class_is_waited_for_and_its_handler_must_be_known(agent: Agent) -> None:
    agent.put(pod("sandboxed", runtimeClassName="sandboxed"))

    def told() -> str:
        return agent.cli("events", "--for", "pod/sandboxed-node")

    eventually(lambda: 'runtimeclass.node.k8s.io "sandboxed" not found' in told())
    kind = {
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": {"name": "sandboxed"},
        "handler": "nobody-has-this",
    }
    agent.put(kind, file="class.yaml")
    eventually(lambda: "nobody-has-this" in told())
    assert "FailedCreatePodSandBox" in told()
    agent.drop("class")
    agent.drop("sandboxed")
    agent.wait_gone("sandboxed")


def test_a_pod_has_users_of_its_own_or_is_told_why_not(agent: Agent, cri: CriClient) -> None:
    agent.put(pod("users", hostUsers=False))

    def settled() -> bool:
        told = agent.cli("events", "--for", "pod/users-node")
        return "does not support user namespaces" in told or bool(
            live_containers(cri, "users-node")
        )

    eventually(settled)
    for running in live_containers(cri, "users-node").values():  # containerd 2 and later
        inside, outside, count = cri.run(running, "cat", "/proc/self/uid_map").split()
        assert (inside, count) == ("0", "65536")
        assert int(outside) >= 65536
    agent.drop("users")
    agent.wait_gone("users")


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"nodeSelector": {"zone": "elsewhere"}}, "NodeAffinity"),
        ({"os": {"name": "windows"}}, "PodOSNotSupported"),
        (
            {"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}},
            "SysctlForbidden",
        ),
    ],
)
def test_a_pod_that_is_not_for_this_node_fails_and_never_runs(
    agent: Agent, cri: CriClient, spec: Json, reason: str
) -> None:
    agent.put(pod("not-here", **spec))
    seen = agent.wait("not-here", failed, 30)["status"]
    assert seen["reason"] == reason
    assert seen["message"].startswith("Pod was rejected: ")
    assert reason in agent.cli("events", "--for", "pod/not-here-node")
    assert "not-here" in agent.cli("pods")
    assert not live_containers(cri, "not-here-node")
    agent.drop("not-here")
    agent.wait_gone("not-here")


def test_a_pod_of_a_higher_priority_takes_the_place_of_another(
    agent: Agent, cri: CriClient
) -> None:
    most = f"{(os.cpu_count() or 1) * 700}m"  # of two only one fits
    main = container("main", forever(), resources={"requests": {"cpu": most}})
    agent.put(pod("low", main, priority=1))
    agent.wait_ready("low")
    agent.put(pod("high", main, priority=2))
    agent.wait("high", is_ready, 60)
    low = agent.wait("low", failed, 30)["status"]
    assert (low["reason"], low["message"]) == (
        "Preempting",
        "Preempted in order to admit critical pod",
    )
    assert not live_containers(cri, "low-node")
    agent.put(pod("third", main, priority=2))
    third = agent.wait("third", failed, 30)["status"]
    assert third["reason"] == "UnexpectedAdmissionError"
    for name in ("low", "high", "third"):
        agent.drop(name)
        agent.wait_gone(name)
