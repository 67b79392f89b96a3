"""The CPU and memory managers as parts of the node: files, shares and metrics of their states.

The metrics are those of the Go kubelet (pkg/kubelet/metrics), counted where it counts them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from lightkube.models.core_v1 import Container, Pod

from kubelet_trio.managers.cpus import (
    STATE_FILE,
    CpuManager,
    CpuState,
    aligned_boundaries,
    cpu_numbers,
    exclusive_cpus,
    format_mask,
    has_exclusive,
)
from kubelet_trio.managers.cpus import encode_checkpoint as encode_cpus
from kubelet_trio.managers.memory import FILE_NAME as MEMORY_FILE
from kubelet_trio.managers.memory import (
    MemoryManager,
    MemoryState,
    is_pinned,
    memory_nodes,
    release_container,
)
from kubelet_trio.managers.memory import encode_checkpoint as encode_memory
from kubelet_trio.managers.shares import ContainerShare
from kubelet_trio.managers.types import Refusal, nodes_of
from kubelet_trio.model import ContainerKind as Kind
from kubelet_trio.model import Meter, PodContainer, PodUid, pod_uid, spec

_ALIGNED = "kubelet_container_aligned_compute_resources_count"
_MISALIGNED = "kubelet_container_aligned_compute_resources_failure_count"
_PHYSICAL = ("container", "physical_cpu")
_CACHE = ("container", "uncore_cache")


@dataclass(frozen=True, slots=True)
class CpuProvider:
    """The CPU manager's static policy.

    Attributes:
        rules: its decisions.
        unlimited: containers with CPUs of their own have no CFS quota.
    """

    rules: CpuManager
    unlimited: bool = True

    @property
    def file(self) -> str:
        return STATE_FILE

    def encode(self, state: CpuState) -> bytes:
        return encode_cpus(state)

    def pods(self, state: CpuState) -> Collection[PodUid]:
        return state.exclusive.keys()

    def share(
        self, state: CpuState, uid: PodUid, container: str, share: ContainerShare
    ) -> ContainerShare:
        return replace(
            share,
            cpuset_cpus=format_mask(state.cpus(uid, container)),
            no_quota=self.unlimited and has_exclusive(state, uid, container),
        )

    def started(self, state: CpuState, pod: Pod, container: Container) -> CpuState:
        return state

    def count(
        self,
        state: CpuState,
        pod: Pod,
        container: Container,
        result: CpuState | Refusal,
        meter: Meter,
    ) -> None:
        if not exclusive_cpus(pod, container):
            return
        meter.count("kubelet_cpu_manager_pinning_requests_total")
        if isinstance(result, Refusal):
            meter.count("kubelet_cpu_manager_pinning_errors_total")
            if self.rules.options.full_cores:
                meter.count(_MISALIGNED, _PHYSICAL)
        elif result is not state:
            for boundary in aligned_boundaries(self.rules, result, pod_uid(pod), container.name):
                meter.count(_ALIGNED, ("container", boundary))

    def measure(self, state: CpuState, meter: Meter) -> None:
        numbers = cpu_numbers(self.rules, state)
        meter.set("kubelet_cpu_manager_shared_pool_size_millicores", numbers.shared_pool_milli)
        meter.set("kubelet_cpu_manager_exclusive_cpu_allocation_count", numbers.exclusive)
        for node, cpus in numbers.by_node.items():
            meter.set("kubelet_cpu_manager_allocation_per_numa", cpus, (str(node),))

    def begin(self, meter: Meter) -> None:
        for name, labels in ((_MISALIGNED, _PHYSICAL), (_ALIGNED, _PHYSICAL), (_ALIGNED, _CACHE)):
            meter.count(name, labels, by=0)


@dataclass(frozen=True, slots=True)
class MemoryProvider:
    """The memory manager's Static policy."""

    rules: MemoryManager

    @property
    def file(self) -> str:
        return MEMORY_FILE

    def encode(self, state: MemoryState) -> bytes:
        return encode_memory(state)

    def pods(self, state: MemoryState) -> Collection[PodUid]:
        return state.blocks.keys()

    def share(
        self, state: MemoryState, uid: PodUid, container: str, share: ContainerShare
    ) -> ContainerShare:
        nodes = memory_nodes(state, uid, container)
        if nodes is None:
            return share
        # A plain list, as PreCreateContainer of the Go kubelet writes it.
        return replace(share, cpuset_mems=",".join(map(str, nodes_of(nodes))))

    def started(self, state: MemoryState, pod: Pod, container: Container) -> MemoryState:
        # As AddContainer of the Go kubelet's memory manager: earlier init containers have ended.
        for init in spec(pod).initContainers or ():
            if init.name == container.name:
                break
            if not PodContainer(Kind.INIT, init).is_sidecar:
                state = release_container(state, pod_uid(pod), init.name)
        return state

    def count(
        self,
        state: MemoryState,
        pod: Pod,
        container: Container,
        result: MemoryState | Refusal,
        meter: Meter,
    ) -> None:
        if is_pinned(pod):
            meter.count("kubelet_memory_manager_pinning_requests_total")
            if isinstance(result, Refusal):
                meter.count("kubelet_memory_manager_pinning_errors_total")

    def measure(self, state: MemoryState, meter: Meter) -> None:
        pass  # upstream has no gauges of it

    def begin(self, meter: Meter) -> None:
        pass
