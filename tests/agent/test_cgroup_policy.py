"""What the daemon makes of the configuration, as far as it concerns cgroups."""

from __future__ import annotations

from typing import Any

import pytest

from kubelet_trio.agent import Agent
from kubelet_trio.config import ConfigError
from kubelet_trio.config.load import load_settings
from kubelet_trio.daemon import build_agent
from kubelet_trio.model import NANO


def build(*flags: str) -> Agent:
    return build_agent(load_settings(["--pod-manifest-path=/manifests", *flags]), {})


def parts(agent: Agent) -> set[str]:
    def names(node: Any) -> set[str]:
        return {node.name}.union(*(names(child) for child in node.children))

    return names(agent.declared())


def test_pods_are_held_to_what_is_left_of_the_machine() -> None:
    agent = build("--system-reserved=memory=1Mi,pid=10", "--pod-max-pids=99")
    node, policy = agent.settings.node, agent.settings.cgroups
    assert policy.budget["memory"] == node.capacity["memory"] - (1 << 20) * NANO
    assert policy.budget["pid"] > 0
    assert node.allocatable["memory"] < policy.budget["memory"]  # eviction acts before the limit
    assert policy.pids_limit == 99
    assert policy.reserved == ()
    free = build("--system-reserved=memory=1Mi", "--enforce-node-allocatable=none")
    assert free.settings.cgroups.budget["memory"] == node.capacity["memory"]


def test_the_daemons_cgroups_are_held_as_configured() -> None:
    agent = build(
        "--system-reserved=cpu=100m",
        "--kube-reserved=cpu=200m",
        "--enforce-node-allocatable=pods,system-reserved,kube-reserved-compressible",
        "--system-reserved-cgroup=/system",
        "--kube-reserved-cgroup=/kube",
        "--feature-gates=QOSReserved=true",
        "--qos-reserved=memory=50%",
    )
    policy = agent.settings.cgroups
    assert [(r.label, r.path, r.compressible_only) for r in policy.reserved] == [
        ("System Reserved", "/system", False),
        ("Kube Reserved Compressible", "/kube", True),
    ]
    assert policy.reserved[1].budget == {"cpu": NANO // 5}
    assert policy.reserve_percent == 50


def test_classes_are_limited_to_what_daemons_leave_though_pods_are_not() -> None:
    """GetNodeAllocatableAbsolute, whatever enforceNodeAllocatable says."""
    agent = build(
        "--system-reserved=memory=1Mi",
        "--enforce-node-allocatable=none",
        "--feature-gates=QOSReserved=true",
        "--qos-reserved=memory=50%",
    )
    node, policy = agent.settings.node, agent.settings.cgroups
    assert policy.allocatable_memory * NANO == node.capacity["memory"] - (1 << 20) * NANO


def test_more_than_there_is_cannot_be_reserved() -> None:
    with pytest.raises(ValueError, match="Expected capacity >= reservation"):
        build("--system-reserved=cpu=100000")
    with pytest.raises(ConfigError, match="cannot reserve 'gpu'"):
        build("--system-reserved=gpu=1")


@pytest.mark.parametrize(
    ("flags", "kept"),
    [
        ([], True),
        (["--cgroups-per-qos=false", "--enforce-node-allocatable=none"], False),
        (["--container-runtime-endpoint=process", "--process-allow-root"], False),
    ],
)
def test_cgroups_are_kept_for_containers_of_a_runtime_only(flags: list[str], kept: bool) -> None:
    assert ({"cgroups", "pod-cgroups"} <= parts(build(*flags))) is kept
