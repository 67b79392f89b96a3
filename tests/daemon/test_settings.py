"""What the daemon makes of the configuration for its agent."""

from __future__ import annotations

from kubelet_trio.config.load import load_settings
from kubelet_trio.daemon import build_agent
from kubelet_trio.managers import ManagerSettings


def managers(*flags: str) -> ManagerSettings:
    settings = load_settings(["--pod-manifest-path=/manifests", *flags])
    return build_agent(settings, {}).settings.managers


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
