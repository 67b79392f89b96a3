"""Limits of the cgroups above containers: of a pod, of a QoS class, of the node. Pure.

A pod's cgroup limits its containers to the pod's sum, including the runtime class' overhead. The
CPU weight of the Burstable class is the sum of its pods' requests, that of BestEffort the minimum;
Guaranteed pods are siblings of both classes. Huge pages are limited on pods, not on classes.

Source: ResourceConfigForPod, qosContainerManagerImpl and getCgroupConfig of pkg/kubelet/cm.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lightkube.models.core_v1 import Pod

from kubelet_trio.cgroups import (
    MIN_SHARES,
    UNBOUNDED_HUGEPAGES,
    UNLIMITED,
    CgroupLimits,
    QosClass,
    milli_cpu_to_quota,
    milli_cpu_to_shares,
)
from kubelet_trio.containers.node import NodeSettings
from kubelet_trio.containers.resources.amounts import (
    declares_limit,
    hugepage_bytes,
    pod_limits,
    pod_qos,
    pod_requests,
)
from kubelet_trio.model import to_milli, to_units

_PID = "pid"
MEMORY_MIN, MEMORY_LOW = "memory.min", "memory.low"


def pod_cgroup_limits(pod: Pod, node: NodeSettings, pids_limit: int = UNLIMITED) -> CgroupLimits:
    """Return the limits of a pod's own cgroup; `pids_limit` is `podPidsLimit`.

    CPU and memory of a Burstable pod are limited only if all its containers limit them. Raises
    ValueError for a quantity that does not parse.
    """
    qos = pod_qos(pod)
    requests, limits = pod_requests(pod), pod_limits(pod)
    common: dict[str, int] = {}
    if qos != "BestEffort" and (qos == "Guaranteed" or declares_limit(pod, "cpu")):
        period = round(node.cpu_cfs_quota_period * 1_000_000)
        quota = milli_cpu_to_quota(to_milli(limits.get("cpu", 0)), period)
        # Written even if unlimited, so that no quota of an earlier configuration remains.
        common["cpu_quota"] = quota if node.cpu_cfs_quota and quota else UNLIMITED
        common["cpu_period"] = period
    if qos != "BestEffort" and (qos == "Guaranteed" or declares_limit(pod, "memory")):
        common["memory"] = to_units(limits.get("memory", 0)) or UNLIMITED
    if pids_limit > 0:
        common["pids"] = pids_limit
    shares = MIN_SHARES if qos == "BestEffort" else _shares(requests)
    return CgroupLimits(
        cpu_shares=shares,
        **common,
        hugepages=hugepage_bytes(requests, node.hugepage_sizes),
        unified=reserved_memory(qos, to_units(requests.get("memory", 0)), node),
    )


def qos_cgroup_limits(
    pods: Iterable[Pod],
    node: NodeSettings,
    *,
    allocatable_memory: int = 0,
    reserve_percent: int | None = None,
) -> dict[QosClass, CgroupLimits]:
    """Return the limits of the QoS classes.

    Args:
        pods: the pods on the node, without those that have ended.
        node: the node's settings.
        allocatable_memory: in bytes.
        reserve_percent: `qosReserved`: so much of the memory that higher classes request is
            taken off the limit of lower classes; None: no limit.

    Guaranteed is the cgroup of all pods: only the settings that depend on pods are returned.
    """
    cpu = 0
    memory: dict[QosClass, int] = {"Guaranteed": 0, "Burstable": 0, "BestEffort": 0}
    for pod in pods:
        qos, requests = pod_qos(pod), pod_requests(pod)
        memory[qos] += to_units(requests.get("memory", 0))
        cpu += to_milli(requests.get("cpu", 0)) if qos == "Burstable" else 0
    unbounded = dict.fromkeys(node.hugepage_sizes, UNBOUNDED_HUGEPAGES)
    burstable = best_effort = None
    if reserve_percent is not None and allocatable_memory:
        burstable = max(allocatable_memory - memory["Guaranteed"] * reserve_percent // 100, 0)
        best_effort = max(burstable - memory["Burstable"] * reserve_percent // 100, 0)
    return {
        "Guaranteed": CgroupLimits(
            unified=_min_of(memory["Guaranteed"] + memory["Burstable"], node)
        ),
        "Burstable": CgroupLimits(
            cpu_shares=milli_cpu_to_shares(cpu),
            memory=burstable,
            hugepages=unbounded,
            unified=reserved_memory("Burstable", memory["Burstable"], node),
        ),
        "BestEffort": CgroupLimits(cpu_shares=MIN_SHARES, memory=best_effort, hugepages=unbounded),
    }


def node_cgroup_limits(
    budget: Mapping[str, int],
    sizes: Iterable[str] = (),
    *,
    compressible_only: bool = False,
    protected: bool = False,
) -> CgroupLimits:
    """Return the limits of a cgroup that may use `budget` (nano-units).

    For the cgroup of all pods and for those of `kubeReserved` and `systemReserved`. CPU becomes a
    weight, not a quota: it may use idle CPU. The kernel never reclaims memory that is `protected`.
    """
    shares = _shares(budget) if "cpu" in budget else None
    if compressible_only:
        return CgroupLimits(cpu_shares=shares)
    memory = to_units(budget["memory"]) if "memory" in budget else None
    return CgroupLimits(
        cpu_shares=shares,
        memory=memory,
        pids=to_units(budget[_PID]) if _PID in budget else None,
        hugepages=hugepage_bytes(budget, sizes),
        unified={MEMORY_MIN: str(memory)} if protected and memory is not None else {},
    )


def reserved_memory(qos: QosClass, request: int, node: NodeSettings) -> dict[str, str]:
    """Return the files that protect `request` bytes from reclaim (the MemoryQoS gate).

    With TieredReservation the kernel never reclaims a Guaranteed pod's memory (memory.min), and a
    Burstable pod's only if there is no other (memory.low).
    """
    if not node.memory_qos or node.cgroup_version != 2:
        return {}
    kept = request if node.memory_reservation else 0
    # Both, so that no value from an earlier configuration remains.
    return {
        MEMORY_MIN: str(kept if qos == "Guaranteed" else 0),
        MEMORY_LOW: str(kept if qos == "Burstable" else 0),
    }


def protected_memory(classes: Mapping[QosClass, CgroupLimits]) -> tuple[int, int] | None:
    """Return the bytes that Guaranteed and that Burstable pods have protected from reclaim.

    None while the MemoryQoS gate protects nothing; `classes` are those of `qos_cgroup_limits`.
    """
    low = classes["Burstable"].unified.get(MEMORY_LOW)
    if low is None:
        return None
    # The cgroup of all pods protects what both classes protect in it.
    return int(classes["Guaranteed"].unified[MEMORY_MIN]) - int(low), int(low)


def unreserved_memory(node: NodeSettings) -> dict[str, str]:
    """Return the files that give back what an earlier configuration has reserved above pods.

    Nothing reserved above a pod means that nothing is reserved in it, whatever its own files say.
    """
    if node.memory_qos or node.cgroup_version != 2:
        return {}
    return {MEMORY_MIN: "0", MEMORY_LOW: "0"}


def _min_of(request: int, node: NodeSettings) -> dict[str, str]:
    return reserved_memory("Guaranteed", request, node)


def _shares(amounts: Mapping[str, int]) -> int:
    return milli_cpu_to_shares(to_milli(amounts.get("cpu", 0)))
