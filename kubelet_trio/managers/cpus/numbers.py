"""The numbers of the CPU manager's metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kubelet_trio.managers.cpus.manager import CpuManager
from kubelet_trio.managers.cpus.state import CpuState
from kubelet_trio.model import PodUid

PHYSICAL_CPU, UNCORE_CACHE = "physical_cpu", "uncore_cache"


@dataclass(frozen=True, slots=True)
class CpuNumbers:
    """What the gauges show.

    Attributes:
        shared_pool_milli: cpu_manager_shared_pool_size_millicores: without the reserved CPUs.
        exclusive: cpu_manager_exclusive_cpu_allocation_count: CPUs, each counted once.
        by_node: cpu_manager_allocation_per_numa: exclusive CPUs of each NUMA node.
    """

    shared_pool_milli: int
    exclusive: int
    by_node: Mapping[int, int]


def cpu_numbers(manager: CpuManager, state: CpuState) -> CpuNumbers:
    """Return what the gauges show of a state."""
    given = state.given
    nodes = manager.layout.nodes.items()
    return CpuNumbers(
        manager.available(state).bit_count() * 1000,
        given.bit_count(),
        {node: (given & cpus).bit_count() for node, cpus in nodes},
    )


def aligned_boundaries(
    manager: CpuManager, state: CpuState, uid: PodUid, container: str
) -> tuple[str, ...]:
    """Return the boundaries to which a container's own CPUs are aligned.

    Each is one of container_aligned_compute_resources_count with scope `container`, counted once
    when the CPUs are given. A refusal counts as a failure of `physical_cpu` with full-pcpus-only.
    """
    own = state.own(uid, container)
    if own is None:
        return ()
    caches = manager.layout.caches.values()
    one_cache = any(not own & ~cache for cache in caches)
    physical = (PHYSICAL_CPU,) if manager.options.full_cores else ()
    return (*physical, UNCORE_CACHE) if one_cache else physical
