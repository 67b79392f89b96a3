"""Turns a container's requests and limits into cgroup settings, with the Go kubelet's numbers.

CPU becomes shares and a CFS quota, memory a limit. The QoS class and the memory request become the
oom_score_adj, which decides what the kernel kills first when the node's memory is exhausted.
Resources on the pod (`spec.resources`) replace a container's missing limits.
"""

from __future__ import annotations

import resource
from collections.abc import Iterable, Mapping

from lightkube.models.core_v1 import Container, Pod, ResourceRequirements

from kubelet_trio.cgroups import milli_cpu_to_quota, milli_cpu_to_shares
from kubelet_trio.containers.node import NodeSettings
from kubelet_trio.containers.resources.amounts import (
    HUGEPAGES,
    amounts,
    container_amounts,
    declares_limit,
    hugepage_bytes,
    pod_level,
    pod_limits,
    pod_qos,
    total_amounts,
)
from kubelet_trio.containers.resources.cgroups import reserved_memory
from kubelet_trio.cri import v1
from kubelet_trio.model import PodContainer, is_critical, to_milli, to_units
from kubelet_trio.model import spec as pod_spec

GUARANTEED_OOM_SCORE_ADJ = -997
BEST_EFFORT_OOM_SCORE_ADJ = 1000
# A Guaranteed pod that uses all memory must still have a lower score than a Burstable one. Source:
# GetContainerOOMScoreAdjust in pkg/kubelet/qos/policy.go.
_MIN_BURSTABLE_OOM_SCORE_ADJ = 1000 + GUARANTEED_OOM_SCORE_ADJ
SYSTEM_NODE_CRITICAL = "system-node-critical"
_PAGE = resource.getpagesize()


def oom_score_adj(pod: Pod, container: PodContainer, memory_capacity: int) -> int:
    """Return a container's oom_score_adj on a node of `memory_capacity` bytes.

    The more memory a Burstable container requests, the lower its score. Raises ValueError.
    """
    # Upstream protects node-critical pods whatever their QoS class.
    if pod_spec(pod).priorityClassName == SYSTEM_NODE_CRITICAL:
        return GUARANTEED_OOM_SCORE_ADJ
    qos = pod_qos(pod)
    if qos == "Guaranteed":
        return GUARANTEED_OOM_SCORE_ADJ
    if qos == "BestEffort":
        return BEST_EFFORT_OOM_SCORE_ADJ
    request = _memory_request(container.spec)
    # KEP-753: a sidecar is not killed before the main containers it serves.
    if container.is_sidecar:
        request = max(request, min(_memory_request(c) for c in pod_spec(pod).containers))
    protected = request + _spare_memory_request(pod)
    score = 1000 - 1000 * protected // max(memory_capacity, 1)
    # Burstable stays between Guaranteed and BestEffort, whatever it requests.
    return min(max(score, _MIN_BURSTABLE_OOM_SCORE_ADJ), BEST_EFFORT_OOM_SCORE_ADJ - 1)


def container_resources(
    pod: Pod, container: PodContainer, node: NodeSettings
) -> v1.LinuxContainerResources:
    """Return the settings of a container's own cgroup. Raises ValueError."""
    own = container.spec.resources or ResourceRequirements()
    requests, limits = amounts(own.requests), amounts(own.limits)
    for name, amount in pod_level(pod, "limits").items():
        # A limit of no huge pages is one; of CPU and memory, zero means none.
        if not limits.get(name) and not (name in limits and name.startswith(HUGEPAGES)):
            limits[name] = amount
    resources = _linux_resources(requests, limits, node)
    resources.oom_score_adj = oom_score_adj(pod, container, node.memory_capacity)
    resources.hugepage_limits = hugepage_limits(limits, node.hugepage_sizes)
    if node.swap_controller:
        _limit_swap(resources, pod, container, node)
    if node.memory_qos and node.cgroup_version == 2:
        resources.unified.update(memory_protection(pod, container, node))
    return resources


def sandbox_resources(pod: Pod, node: NodeSettings) -> v1.LinuxContainerResources:
    """Return the sum over the pod's containers; sandboxes that are VMs are sized by it."""
    requests = {**total_amounts(pod, "requests"), **pod_level(pod, "requests")}
    limits = {**total_amounts(pod, "limits"), **pod_level(pod, "limits")}
    return _linux_resources(requests, limits, node)


def overhead_resources(pod: Pod, node: NodeSettings) -> v1.LinuxContainerResources:
    """Return the runtime class' `spec.overhead`, as request and as limit."""
    overhead = amounts(pod_spec(pod).overhead)
    if not overhead:
        return v1.LinuxContainerResources()
    return _linux_resources({"cpu": overhead.get("cpu", 0)}, overhead, node)


def hugepage_limits(limits: Mapping[str, int], sizes: Iterable[str]) -> list[v1.HugepageLimit]:
    """Return a limit for every page size of the node: 0 if the container names none."""
    by_size = hugepage_bytes(limits, sizes)
    return [v1.HugepageLimit(page_size=size, limit=limit) for size, limit in by_size.items()]


def _linux_resources(
    requests: Mapping[str, int], limits: Mapping[str, int], node: NodeSettings
) -> v1.LinuxContainerResources:
    cpu_limit = to_milli(limits.get("cpu", 0))
    # A limit without a request is the request, as the API server defaults it.
    cpu_request = to_milli(requests["cpu"]) if "cpu" in requests else cpu_limit
    resources = v1.LinuxContainerResources(
        cpu_shares=milli_cpu_to_shares(cpu_request),
        memory_limit_in_bytes=to_units(limits.get("memory", 0)),
    )
    if node.cpu_cfs_quota:
        resources.cpu_period = round(node.cpu_cfs_quota_period * 1_000_000)
        resources.cpu_quota = milli_cpu_to_quota(cpu_limit, resources.cpu_period)
    # Since Kubernetes 1.28: an OOM kill ends all processes of the container, unless the setting
    # `singleProcessOOMKill` keeps the kernel's default.
    if node.cgroup_version == 2 and not node.single_process_oom_kill:
        resources.unified["memory.oom.group"] = "1"
    return resources


def _limit_swap(
    resources: v1.LinuxContainerResources, pod: Pod, container: PodContainer, node: NodeSettings
) -> None:
    if node.cgroup_version == 2:
        resources.unified["memory.swap.max"] = str(swap_limit(pod, container, node))
    else:
        # Version 1 limits the sum of memory and swap: this allows no swap.
        resources.memory_swap_limit_in_bytes = resources.memory_limit_in_bytes


def swap_limit(pod: Pod, container: PodContainer, node: NodeSettings) -> int:
    """Return the bytes of swap that a container may use (KEP-2400).

    With LimitedSwap that is the share of the node's swap that its memory request is of the node's
    memory. Critical pods, Guaranteed and BestEffort pods, and containers whose request equals
    their limit get none.
    """
    request = _memory_request(container.spec)
    if (
        not node.limited_swap
        or not may_swap(pod, container)
        or not 0 <= request <= node.memory_capacity
        or not node.memory_capacity
    ):
        return 0
    return request * node.swap_capacity // node.memory_capacity


def may_swap(pod: Pod, container: PodContainer) -> bool:
    """Whether a container gets swap on a node with LimitedSwap. Raises ValueError."""
    limit = to_units(container_amounts(container.spec, "limits").get("memory", 0))
    return (
        not is_critical(pod)
        and pod_qos(pod) == "Burstable"
        and _memory_request(container.spec) != limit
    )


def memory_protection(pod: Pod, container: PodContainer, node: NodeSettings) -> dict[str, str]:
    """Return the cgroup v2 files that the MemoryQoS gate sets on a container (KEP-2570).

    `memory.high` lies between request and limit (without one, the node's allocatable memory):
    above it the kernel throttles the container before it would kill it. A container whose request
    equals its limit is not throttled, nor is one that has neither.
    """
    own = container.spec.resources or ResourceRequirements()
    request = to_units(amounts(own.requests).get("memory", 0))
    limit = to_units(amounts(own.limits).get("memory", 0))
    found = reserved_memory(pod_qos(pod), request, node)
    top = limit or to_units(node.allocatable.get("memory", 0))
    if request != limit and top:
        high = int(request + (top - request) * node.memory_throttling_factor)
        high = high // _PAGE * _PAGE  # the kernel counts whole pages
        if high > request:
            found["memory.high"] = str(high)
    return found


def _memory_request(container: Container) -> int:
    return to_units(container_amounts(container, "requests").get("memory", 0))


def _spare_memory_request(pod: Pod) -> int:
    """Return each container's equal share of the pod-level request beyond their own requests."""
    requested = pod_level(pod, "requests")
    if not requested.get("memory"):
        return 0
    spec = pod_spec(pod)
    count = len(spec.containers or ()) + len(spec.initContainers or ())
    spare = to_units(requested["memory"]) - to_units(
        total_amounts(pod, "requests").get("memory", 0)
    )
    return spare // count


def pod_memory_limit(pod: Pod) -> int:
    """Return the memory limit of the pod's cgroup in bytes; 0 if it has none."""
    return to_units(pod_limits(pod).get("memory", 0)) if declares_limit(pod, "memory") else 0
