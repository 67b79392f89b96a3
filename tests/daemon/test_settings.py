"""What the daemon makes of the configuration for its agent."""

from __future__ import annotations

from pathlib import Path

import pytest

from kubelet_trio.agent import AgentSettings
from kubelet_trio.config.load import load_settings
from kubelet_trio.containers.node import ResolvConf
from kubelet_trio.daemon import build_agent
from kubelet_trio.managers import ManagerSettings
from kubelet_trio.pods import BackOffPolicy
from kubelet_trio.shutdown import ShutdownPeriod


def agent(*flags: str) -> AgentSettings:
    settings = load_settings(["--pod-manifest-path=/manifests", *flags])
    return build_agent(settings, {}).settings


def managers(*flags: str) -> ManagerSettings:
    return agent(*flags).managers


def test_the_managers_reckon_with_all_that_the_node_keeps() -> None:
    found = managers(
        "--cpu-manager-policy=static",
        "--kube-reserved=cpu=100m,memory=1Mi",
        "--system-reserved=cpu=50m,memory=1Mi",
        "--eviction-hard=memory.available<3Mi",
    )
    assert found.gives_cpus
    assert not found.gives_memory
    assert found.reserved_cpu_milli == 150
    assert found.reserved_memory_bytes == {"memory": 5 << 20}


def test_thresholds_that_are_left_out_of_allocatable_are_not_kept() -> None:
    found = managers(
        "--kube-reserved=memory=1Mi",
        "--eviction-hard=memory.available<3Mi",
        "--experimental-allocatable-ignore-eviction",
    )
    assert found.reserved_memory_bytes == {"memory": 1 << 20}


def test_reserved_cpus_replace_the_other_reservations_of_cpu() -> None:
    found = managers("--reserved-cpus=0", "--kube-reserved=cpu=100m")
    assert found.reserved_cpus == frozenset({0})
    assert found.reserved_cpu_milli == 1000


@pytest.mark.parametrize(
    ("endpoint", "logs", "clears"),
    [
        ("unix:///run/containerd/containerd.sock", "/var/log/pods", True),
        ("process", "/var/log/pods", False),  # maybe those of the machine's kubelet
        ("process", "/r/logs/pods", True),
    ],
)
def test_only_logs_that_are_surely_its_own_are_cleared(
    tmp_path: Path, endpoint: str, logs: str, clears: bool
) -> None:
    file = tmp_path / "config"
    head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
    file.write_text(f"{head}podLogsDir: {logs}\n")
    flags = (f"--config={file}", f"--container-runtime-endpoint={endpoint}", "--root-dir=/r")
    assert agent(*flags).container_gc.clears_unknown_logs is clears


def test_gates_of_shutdown_and_resources_of_pods_may_be_off(tmp_path: Path) -> None:
    file, head = tmp_path / "config", "apiVersion: kubelet.config.k8s.io/v1beta1\n"
    head += "kind: KubeletConfiguration\n"
    file.write_text(f"{head}shutdownGracePeriod: 20s\nshutdownGracePeriodCriticalPods: 10s\n")
    # Both are what the node tests of Kubernetes set.
    gates = "GracefulNodeShutdown=true,GracefulNodeShutdownBasedOnPodPriority=false"
    found = agent(f"--config={file}", f"--feature-gates={gates}")
    assert [period.seconds for period in found.shutdown] == [10, 10]
    by_priority = "[{priority: 0, shutdownGracePeriodSeconds: 5}]"
    file.write_text(f"{head}shutdownGracePeriodByPodPriority: {by_priority}\n")
    assert agent(f"--config={file}").shutdown == (ShutdownPeriod(0, 5),)
    off = "--feature-gates=GracefulNodeShutdown=false,PodLevelResources=false"
    found = agent(f"--config={file}", off)
    assert found.shutdown == ()
    assert len(found.admission.checks) == 1


def test_back_offs_begin_with_a_second_if_the_gate_asks_for_it() -> None:
    assert agent().crash_back_off == BackOffPolicy(base=10, cap=300)
    reduced = agent("--feature-gates=ReduceDefaultCrashLoopBackOffDecay=true").crash_back_off
    assert reduced == BackOffPolicy(base=1, cap=300)  # the longest is the configuration's


def test_stop_signals_are_obeyed_if_the_gate_asks_for_it() -> None:
    assert not agent().node.stop_signals
    assert agent("--feature-gates=ContainerStopSignals=true").node.stop_signals


def test_resources_of_pods_are_resized_unless_the_gate_is_off() -> None:
    gate = "InPlacePodLevelResourcesVerticalScaling"
    assert agent().node.pod_level_resizes
    found = agent(f"--feature-gates={gate}=false,PodLevelResources=false")
    assert not found.node.pod_level_resizes


def test_any_pod_may_use_any_image_if_the_gate_is_off() -> None:
    assert agent().pull_verification is not None
    off = agent("--feature-gates=KubeletEnsureSecretPulledImages=false")
    assert off.pull_verification is None


def test_digests_of_image_volumes_are_shown_if_the_gate_asks_for_it() -> None:
    assert not agent().node.image_digests
    assert agent("--feature-gates=ImageVolumeWithDigest=true").node.image_digests


def test_a_resolver_file_that_comes_later_does_not_keep_the_agent_from_starting(
    tmp_path: Path,
) -> None:
    # systemd-resolved writes the one that kubeadm names, below /run, at each boot.
    file = tmp_path / "resolv.conf"
    assert agent(f"--resolv-conf={file}").node.resolver_file == str(file)
    assert agent(f"--resolv-conf={file}").node.resolv_conf == ResolvConf()
    file.write_text("nameserver 192.0.2.1\n")
    assert agent(f"--resolv-conf={file}").node.resolv_conf == ResolvConf(("192.0.2.1",))
    assert agent("--resolv-conf=").node.resolv_conf is None
