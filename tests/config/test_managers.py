"""The managers' settings are checked before the start, and become plain values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kubelet_trio.config import KubeletConfiguration, manager_settings
from kubelet_trio.config.gates import GATES
from kubelet_trio.config.load import load_settings
from kubelet_trio.config.managers import idle_fields, manager_problems
from kubelet_trio.config.types import MemoryReservation
from kubelet_trio.config.validate import validate
from kubelet_trio.managers import ManagerSettings, TopologyOptions
from kubelet_trio.managers.affinity import Affinity
from kubelet_trio.model import NANO
from tests.config.test_load import config_file, problems_of
from tests.managers.affinity.make import machine

ALPHA = {"CPUManagerPolicyAlphaOptions": True}


def static(gates: dict[str, bool] | None = None, **options: str) -> KubeletConfiguration:
    given = {name.replace("_", "-"): value for name, value in options.items()}
    return KubeletConfiguration(
        cpu_manager_policy="static",
        cpu_manager_policy_options=given,
        feature_gates=gates or {},
        kube_reserved={"cpu": "500m"},
    )


def aligned(policy: str, **options: str) -> KubeletConfiguration:
    given = {name.replace("_", "-"): value for name, value in options.items()}
    return KubeletConfiguration(
        topology_manager_policy=policy, topology_manager_policy_options=given
    )


def kept(*nodes: tuple[int, dict[str, str]], policy: str = "Static") -> KubeletConfiguration:
    return KubeletConfiguration(
        memory_manager_policy=policy,
        reserved_memory=[
            MemoryReservation(numa_node=node, limits=limits) for node, limits in nodes
        ],
    )


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (static(cpus="true"), 'unknown CPU Manager Policy option: "cpus" (there are full-pcpus'),
        (static(full_pcpus_only="yes"), 'bad value for option "full-pcpus-only": "yes" is not tr'),
        (static(align_by_socket="true"), '"align-by-socket" needs the feature gate CPUManagerPol'),
        # A gate is needed to name the option, whatever its value.
        (static(distribute_cpus_across_cores="false"), "needs the feature gate CPUManagerPolicyAl"),
        (
            static({"CPUManagerPolicyBetaOptions": False}, distribute_cpus_across_numa="true"),
            "needs the feature gate CPUManagerPolicyBetaOptions",
        ),
        (
            static(ALPHA, full_pcpus_only="true", distribute_cpus_across_cores="true"),
            "full-pcpus-only and distribute-cpus-across-cores can not be used at the same time",
        ),
        (
            static(ALPHA, distribute_cpus_across_numa="1", distribute_cpus_across_cores="1"),
            "distribute-cpus-across-numa and distribute-cpus-across-cores can not be used",
        ),
        (
            static(ALPHA, prefer_align_cpus_by_uncorecache="1", distribute_cpus_across_cores="1"),
            "prefer-align-cpus-by-uncorecache and distribute-cpus-across-cores can not be used",
        ),
        (
            static(prefer_align_cpus_by_uncorecache="1", distribute_cpus_across_numa="t"),
            "prefer-align-cpus-by-uncorecache and distribute-cpus-across-numa can not be used",
        ),
        (
            KubeletConfiguration(cpu_manager_policy_options={"full-pcpus-only": "true"}),
            "the policy none has no options, and full-pcpus-only is given",
        ),
        (
            KubeletConfiguration(
                cpu_manager_policy="static",
                cpu_manager_policy_options={"align-by-socket": "true"},
                topology_manager_policy="single-numa-node",
                feature_gates=ALPHA,
                reserved_system_cpus="0",
            ),
            "align-by-socket is incompatible with topologyManagerPolicy",
        ),
        (
            KubeletConfiguration(cpu_manager_policy="static", kube_reserved={"cpu": "0"}),
            "requires systemReserved.cpu + kubeReserved.cpu to be greater than zero",
        ),
        (KubeletConfiguration(cpu_manager_policy=""), '"" must be one of: "none", "static"'),
        (kept(policy="BestEffort"), '"BestEffort" exists on Windows only'),
        (kept(policy="static"), '"static" must be one of: "None", "Static"'),
        (
            kept((0, {"blabla": "1Gi"})),
            'the limit type "blabla" for NUMA node 0 is not supported, only '
            "[memory hugepages-<HugePageSize>] is accepted",
        ),
        (
            kept((1, {"memory": "0"})),
            'reserved memory may not be zero for NUMA node 1 and resource "memory"',
        ),
        (
            kept((0, {"memory": "1Gi", "hugepages-2Mi": "4Mi"}), (0, {"memory": "2Gi"})),
            'has a duplicate value for NUMA node 0 and resource "memory"',
        ),
        (kept((0, {"memory": "-1"})), "NUMA node 0: memory: -1 must not be negative"),
        (kept((0, {"memory": "much"})), "reservedMemory (--reserved-memory): NUMA node 0: memory:"),
        # Also with the policy None, as upstream.
        (kept((0, {"memory": "0"}), policy="None"), "reserved memory may not be zero"),
        (aligned("best-effort", nodes="1"), 'unknown Topology Manager Policy option: "nodes"'),
        (aligned("restricted", prefer_closest_numa_nodes="y"), 'bad value for option "prefer-clo'),
        (
            aligned("restricted", max_allowable_numa_nodes="7"),
            'the minimum value of "max-allowable-numa-nodes" should not be less than 8',
        ),
        (
            aligned("restricted", max_allowable_numa_nodes="many"),
            'unable to convert policy option to integer "max-allowable-numa-nodes": "many"',
        ),
        (aligned("strict"), '"strict" must be one of: "none", "best-effort", "restricted"'),
        (KubeletConfiguration(topology_manager_scope="node"), '"node" must be one of: "container"'),
    ],
)
def test_a_setting_that_no_manager_can_follow_is_named(
    config: KubeletConfiguration, said: str
) -> None:
    [problem] = validate(config)
    assert problem.startswith("invalid configuration: ")
    assert said in problem


@pytest.mark.parametrize(
    "config",
    [
        static(full_pcpus_only="true", strict_cpu_reservation="True"),
        static(distribute_cpus_across_numa="true", full_pcpus_only="true"),
        static(ALPHA, align_by_socket="true", distribute_cpus_across_numa="true"),
        # An option that is off excludes nothing.
        static(ALPHA, full_pcpus_only="false", distribute_cpus_across_cores="true"),
        kept((0, {"memory": "1Gi"}), (1, {"memory": "1Gi", "hugepages-1Gi": "2Gi"})),
        aligned(
            "single-numa-node", prefer_closest_numa_nodes="true", max_allowable_numa_nodes="16"
        ),
        # Without a policy upstream does not read the options.
        aligned("none", nodes="1"),
    ],
)
def test_what_managers_can_follow_is_no_problem(config: KubeletConfiguration) -> None:
    assert list(manager_problems(config)) == []


def test_a_bad_reservation_is_told_once() -> None:
    config = KubeletConfiguration(cpu_manager_policy="static", kube_reserved={"cpu": "much"})
    [problem] = validate(config)
    assert "kubeReserved (--kube-reserved): cpu" in problem


def test_a_period_of_nothing_is_refused() -> None:
    [problem] = problems_of("--cpu-manager-reconcile-period=0s")
    assert "cpuManagerReconcilePeriod (--cpu-manager-reconcile-period) 0s must be gr" in problem


def test_by_default_no_manager_does_anything() -> None:
    assert manager_settings(KubeletConfiguration(), {}) == ManagerSettings()


def test_the_file_and_the_flags_become_the_managers_settings(tmp_path: Path) -> None:
    body = """
cpuManagerPolicy: static
cpuManagerPolicyOptions: {full-pcpus-only: "true", strict-cpu-reservation: "false"}
cpuManagerReconcilePeriod: 5s
reservedSystemCPUs: 0-1,8
memoryManagerPolicy: Static
reservedMemory: [{numaNode: 0, limits: {memory: 1100Mi}}]
topologyManagerPolicy: restricted
topologyManagerScope: pod
topologyManagerPolicyOptions: {prefer-closest-numa-nodes: "true", max-allowable-numa-nodes: "9"}
featureGates:
  DisableCPUQuotaWithExclusiveCPUs: false
  KubeletPodResourcesListUseActivePods: false
  PodsAPI: true
  ResourceHealthStatus: false
  ResourceHealthStatusMessage: false
"""
    path = config_file(tmp_path / "c", body)
    settings = load_settings([f"--config={path}", "--topology-manager-scope=container"])
    assert settings.notes == (
        "--topology-manager-scope is deprecated: set topologyManagerScope "
        "in the --config file instead",
    )
    kept_back = {"cpu": 3 * NANO, "memory": 1100 * 2**20 * NANO, "ephemeral-storage": NANO}
    assert manager_settings(settings.config, kept_back) == ManagerSettings(
        cpu_policy="static",
        cpu_options={"full-pcpus-only": True, "strict-cpu-reservation": False},
        reconcile_period=5.0,
        reserved_cpus=frozenset({0, 1, 8}),
        reserved_cpu_milli=3000,
        memory_policy="Static",
        reserved_memory=((0, {"memory": "1100Mi"}),),
        reserved_memory_bytes={"memory": 1100 * 2**20},
        topology_policy="restricted",
        topology_scope="container",
        topology_options=TopologyOptions(prefer_closest=True, max_nodes=9),
        unlimited_exclusive_cpus=False,
        device_health=False,
        device_health_message=False,
        pod_resources_active=False,
        pods_api=True,
    )


def test_parts_of_a_cpu_are_kept_in_thousandths() -> None:
    settings = manager_settings(static(), {"cpu": NANO // 2 + 1, "memory": 1})
    assert settings.reserved_cpus is None
    assert settings.reserved_cpu_milli == 501
    assert settings.reserved_memory_bytes == {"memory": 1}


@pytest.mark.parametrize(
    ("config", "fields"),
    [
        ({"cpu_manager_reconcile_period": 5}, ["cpuManagerReconcilePeriod"]),
        ({"reserved_memory": [MemoryReservation(numa_node=0, limits={})]}, ["reservedMemory"]),
        (
            {
                "topology_manager_scope": "pod",
                "topology_manager_policy_options": {"prefer-closest-numa-nodes": "true"},
            },
            ["topologyManagerScope", "topologyManagerPolicyOptions"],
        ),
        ({"topology_manager_scope": "pod", "topology_manager_policy": "restricted"}, []),
        ({"cpu_manager_policy": "static", "cpu_manager_reconcile_period": 5}, []),
    ],
)
def test_a_setting_of_a_policy_that_is_off_is_told_to_have_no_effect(
    config: dict[str, Any], fields: list[str]
) -> None:
    assert [path for path, _ in idle_fields(KubeletConfiguration(**config))] == fields


def test_the_log_tells_of_settings_without_effect() -> None:
    settings = load_settings(["--topology-manager-scope=pod"])
    assert (
        "topologyManagerScope (--topology-manager-scope) has no effect: "
        "topologyManagerPolicy is none"
    ) in settings.notes


@pytest.mark.parametrize("policy", ["none", "best-effort", "restricted", "single-numa-node"])
@pytest.mark.parametrize("scope", ["container", "pod"])
def test_the_managers_know_what_the_configuration_accepts(policy: str, scope: str) -> None:
    settings = manager_settings(
        KubeletConfiguration(topology_manager_policy=policy, topology_manager_scope=scope), {}
    )
    Affinity(
        settings.topology_policy, settings.topology_scope, settings.topology_options, machine([0])
    )


def test_without_gates_the_managers_do_what_the_gates_are_by_default() -> None:
    settings = ManagerSettings()
    assert settings.unlimited_exclusive_cpus == GATES["DisableCPUQuotaWithExclusiveCPUs"]
    assert settings.device_health == GATES["ResourceHealthStatus"]
    assert settings.device_health_message == GATES["ResourceHealthStatusMessage"]
    assert settings.pod_resources_active == GATES["KubeletPodResourcesListUseActivePods"]
    assert settings.pods_api == GATES["PodsAPI"]
    options = static(distribute_cpus_across_numa="true")
    assert (list(manager_problems(options)) == []) == GATES["CPUManagerPolicyBetaOptions"]
    options = static(align_by_socket="true")
    assert (list(manager_problems(options)) == []) == GATES["CPUManagerPolicyAlphaOptions"]
