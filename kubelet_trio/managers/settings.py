"""The settings of the managers, in plain values that a validated configuration gives.

Importing this loads no manager: an agent whose policies are all `none` needs none of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

# Policies of the topology manager that ask the others for hints (topologyManagerPolicy).
BEST_EFFORT, RESTRICTED, SINGLE_NUMA_NODE = "best-effort", "restricted", "single-numa-node"
NONE = "none"

# More nodes than this make too many combinations of them; upstream's defaultMaxAllowableNUMANodes.
MAX_NUMA_NODES = 8


@dataclass(frozen=True, slots=True)
class TopologyOptions:
    """topologyManagerPolicyOptions.

    Attributes:
        prefer_closest: prefer-closest-numa-nodes: of sets of as many nodes, the nearest ones win.
        max_nodes: max-allowable-numa-nodes: with more nodes the agent does not start.
    """

    prefer_closest: bool = False
    max_nodes: int = MAX_NUMA_NODES


@dataclass(frozen=True, slots=True)
class ManagerSettings:
    """Which policies the managers follow, and what they keep for the system.

    Attributes:
        cpu_policy: cpuManagerPolicy: `none` or `static`.
        cpu_options: cpuManagerPolicyOptions, by upstream's names; one that is missing is off.
        reconcile_period: seconds between two comparisons of all containers' CPU sets.
        reserved_cpus: reservedSystemCPUs; None: `reserved_cpu_milli` says how many.
        reserved_cpu_milli: CPU of kubeReserved and systemReserved together.
        memory_policy: memoryManagerPolicy: `None` or `Static`.
        reserved_memory: reservedMemory: NUMA node, and quantity by resource (`memory: 1Gi`).
        reserved_memory_bytes: bytes by resource (`memory`, `hugepages-<size>`) of kubeReserved,
            systemReserved and evictionHard together; `reserved_memory` must add up to them.
        topology_policy: topologyManagerPolicy.
        topology_scope: topologyManagerScope: `container` or `pod`.
        topology_options: topologyManagerPolicyOptions.
        unlimited_exclusive_cpus: containers with exclusive CPUs get no CFS quota (the gate
            DisableCPUQuotaWithExclusiveCPUs).
        device_health: container statuses have the health of devices (ResourceHealthStatus).
        device_health_message: and the message of an unhealthy one (ResourceHealthStatusMessage).
        pod_resources_active: pod resources lists active pods only
            (KubeletPodResourcesListUseActivePods).
        claims: whether pods may use resource claims (DynamicResourceAllocation).
        extended_claims: extended resources may come from claims (DRAExtendedResource).
        show_claims: pod resources lists claims (KubeletPodResourcesDynamicResources).
        pods_api: whether the socket of the Pods API is served (PodsAPI).
    """

    cpu_policy: str = NONE
    cpu_options: Mapping[str, bool] = field(default_factory=dict)
    reconcile_period: float = 10.0
    reserved_cpus: frozenset[int] | None = None
    reserved_cpu_milli: int = 0
    memory_policy: str = "None"
    reserved_memory: tuple[tuple[int, Mapping[str, str]], ...] = ()
    reserved_memory_bytes: Mapping[str, int] = field(default_factory=dict)
    topology_policy: str = NONE
    topology_scope: str = "container"
    topology_options: TopologyOptions = TopologyOptions()
    unlimited_exclusive_cpus: bool = True
    device_health: bool = True
    device_health_message: bool = True
    pod_resources_active: bool = True
    claims: bool = True
    extended_claims: bool = True
    show_claims: bool = True
    pods_api: bool = False

    @property
    def gives_cpus(self) -> bool:
        """Whether containers may get CPUs of their own."""
        return self.cpu_policy == "static"

    @property
    def gives_memory(self) -> bool:
        """Whether containers' memory is kept on chosen NUMA nodes."""
        return self.memory_policy == "Static"
