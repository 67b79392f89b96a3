"""The static policy: whole CPUs of their own for containers of Guaranteed pods that ask for them.

All other containers share the rest. Source: policy_static.go of pkg/kubelet/cm/cpumanager, without
its alpha pod-level part. What can be used again of init containers follows from the state alone,
so that a restart changes no answer.
"""

from __future__ import annotations

from collections.abc import Iterator

from lightkube.models.core_v1 import Container, Pod

from kubelet_trio.managers.cpus.distribute import take_distributed
from kubelet_trio.managers.cpus.errors import CpuConfigError, NotEnoughCpusError
from kubelet_trio.managers.cpus.layout import Layout
from kubelet_trio.managers.cpus.masks import cpu_ids, cpu_mask, format_mask
from kubelet_trio.managers.cpus.options import NO_OPTIONS, CpuOptions
from kubelet_trio.managers.cpus.state import CpuState
from kubelet_trio.managers.cpus.take import take_packed
from kubelet_trio.managers.guaranteed import amount, has_pod_level_resources, is_guaranteed
from kubelet_trio.managers.types import Hint, Hints, Machine, Refusal
from kubelet_trio.model import (
    ContainerKind,
    PodContainer,
    PodUid,
    pod_uid,
    spec,
    to_milli,
    to_units,
)

CPU = "cpu"
SMT_ALIGNMENT_ERROR = "SMTAlignmentError"
_UNEXPECTED = "UnexpectedAdmissionError"


class CpuManager:
    """The rules of one machine; a `Manager[CpuState]`.

    Attributes:
        layout: where the machine's CPUs are.
        reserved: the mask of CPUs that no container may have for itself.
        options: the policy's options.
    """

    def __init__(
        self, machine: Machine, reserved: frozenset[int], options: CpuOptions = NO_OPTIONS
    ) -> None:
        """Raises CpuConfigError for a reserved CPU that the machine does not have."""
        self.layout = Layout(machine)
        self.reserved = cpu_mask(reserved)
        self.options = options
        if unknown := self.reserved & ~self.layout.all:
            raise CpuConfigError(
                f"reserved CPUs {format_mask(unknown)} are not online: this machine has CPUs"
                f" {format_mask(self.layout.all)}"
            )
        cores = (cpus for cpus in self.layout.cores.values() if cpus & self.reserved)
        self._reserved_cores = sum(cores)

    @property
    def known(self) -> int:
        """The CPUs that are in the shared pool or in a container's hands at any time."""
        return self.layout.all & ~(self.reserved if self.options.strict_reservation else 0)

    @property
    def allocatable(self) -> frozenset[int]:
        """The CPUs that containers may have for themselves, free or not (podresources)."""
        return cpu_ids(self.layout.all & ~self.reserved)

    def initial(self) -> CpuState:
        """Return the state of a node without containers."""
        return CpuState(self.known)

    def available(self, state: CpuState) -> int:
        """Return the mask of CPUs that can be given away."""
        return state.shared & ~self.reserved

    def hints(self, state: CpuState, pod: Pod, container: Container) -> Hints:
        """Return the sets of NUMA nodes that have as many CPUs as a container asks for."""
        asked = exclusive_cpus(pod, container)
        if not asked:
            return {}
        own = state.own(pod_uid(pod), container.name)
        if own is None:
            return {CPU: self._node_hints(self.available(state), _reusable(state, pod), asked)}
        return {CPU: self._node_hints(own, 0, asked) if own.bit_count() == asked else ()}

    def pod_hints(self, state: CpuState, pod: Pod) -> Hints:
        """Return the sets of NUMA nodes that have as many CPUs as a pod asks for."""
        asked = pod_exclusive_cpus(pod)
        if not asked:
            return {}
        given = state.given_to(pod_uid(pod))
        for container in _containers(pod):
            own = state.own(pod_uid(pod), container.spec.name)
            if own is not None and own.bit_count() != exclusive_cpus(pod, container.spec):
                return {CPU: ()}
        if given.bit_count() == asked:
            return {CPU: self._node_hints(given, 0, asked)}
        return {CPU: self._node_hints(self.available(state), given, asked)}

    def allocate(
        self, state: CpuState, pod: Pod, container: Container, affinity: Hint
    ) -> CpuState | Refusal:
        """Return the state in which a container has its CPUs, near the NUMA nodes of `affinity`."""
        asked, uid = exclusive_cpus(pod, container), pod_uid(pod)
        # A container that has its CPUs keeps them, whatever the options are by now.
        if not asked or state.own(uid, container.name) is not None:
            return state
        usable = self.available(state) | _reusable(state, pod)
        misaligned = self._misaligned(usable, asked)
        if misaligned is not None:
            return Refusal(SMT_ALIGNMENT_ERROR, f"SMT Alignment Error: {misaligned}")
        try:
            taken = 0
            if affinity.nodes is not None:
                near = usable & self._near(affinity.nodes)
                taken = self.take(near, min(asked, near.bit_count()))
            taken |= self.take(usable & ~taken, asked - taken.bit_count())
        except NotEnoughCpusError as exc:
            return Refusal(_UNEXPECTED, f"Allocate failed due to {exc}, which is unexpected")
        return state.with_own(uid, container.name, taken)

    def release(self, state: CpuState, uid: PodUid) -> CpuState:
        """Return the state without the CPUs of a pod."""
        return state.without(uid)

    def take(self, available: int, count: int) -> int:
        """Return the mask of `count` of the available CPUs. Raises NotEnoughCpusError."""
        options, layout = self.options, self.layout
        spread = options.across_cores
        if options.across_nodes:
            group = layout.cpus_per_core if options.full_cores else 1
            return take_distributed(layout, available, count, group, spread=spread)
        return take_packed(layout, available, count, spread=spread, by_cache=options.by_cache)

    def _node_hints(self, available: int, reusable: int, asked: int) -> tuple[Hint, ...]:
        """Return the sets of NUMA nodes with all reusable CPUs and enough available ones."""
        sets = self.layout.node_sets
        enough = (size for _, size, cpus in sets if cpus.bit_count() >= asked)
        fewest = next(enough, len(self.layout.nodes))
        usable, by_socket = available | reusable, self.options.by_socket
        return tuple(
            Hint(nodes, size == fewest or (by_socket and self._is_aligned(nodes, fewest)))
            for nodes, size, cpus in sets
            if not reusable & ~cpus and (usable & cpus).bit_count() >= asked
        )

    def _is_aligned(self, nodes: int, fewest: int) -> bool:
        """Return whether nodes are in as few sockets as the fewest nodes need (align-by-socket)."""
        per_socket = len(self.layout.nodes) // len(self.layout.packages)
        if not per_socket:
            return False
        return len(self.layout.packages_of(nodes)) == -(-fewest // per_socket)

    def _near(self, nodes: int) -> int:
        """Return the mask of the CPUs of NUMA nodes, or of their sockets with align-by-socket."""
        layout = self.layout
        if self.options.by_socket:
            return sum(layout.packages[package] for package in layout.packages_of(nodes))
        return sum(cpus for node, cpus in layout.nodes.items() if nodes >> node & 1)

    def _misaligned(self, usable: int, asked: int) -> str | None:
        """Return why a request is refused with full-pcpus-only; None if it is not."""
        if not self.options.full_cores:
            return None
        per_core = self.layout.cpus_per_core
        if asked % per_core:
            return f"requested {asked} cpus not multiple cpus per core = {per_core}"
        # With a reserved thread, the rest of its core would have to be given away in part.
        free = (usable & ~self._reserved_cores).bit_count()
        if asked > free:
            return (
                f"not enough free physical CPUs: available physical CPUs = {free}, "
                f"requested CPUs = {asked}, CPUs per core = {per_core}"
            )
        return None


def reserve_cpus(
    machine: Machine,
    milli: int,
    options: CpuOptions = NO_OPTIONS,
    chosen: frozenset[int] | None = None,
) -> frozenset[int]:
    """Return the CPUs to reserve for the system.

    `milli` is the CPU of kubeReserved and systemReserved together, in thousandths, and rounded up
    to whole CPUs; `chosen` are those of reservedSystemCPUs, if it is set. Raises CpuConfigError.
    """
    if chosen:
        return chosen
    if milli <= 0:
        raise CpuConfigError(
            "[cpumanager] the static policy requires systemreserved.cpu + kubereserved.cpu to be"
            " greater than zero: set kubeReserved.cpu, systemReserved.cpu or reservedSystemCPUs"
        )
    manager = CpuManager(machine, frozenset(), options)
    count = -(-milli // 1000)
    try:
        return cpu_ids(manager.take(manager.layout.all, count))
    except NotEnoughCpusError as exc:
        raise CpuConfigError(
            f"[cpumanager] unable to reserve the required amount of CPUs: {exc}"
        ) from exc


def exclusive_cpus(pod: Pod, container: Container) -> int:
    """Return how many CPUs of its own a container asks for; 0 for those of the shared pool.

    It asks for a whole number of CPUs, and its pod is Guaranteed. Raises ValueError.
    """
    nano = amount(container.resources.requests if container.resources else None, CPU)
    units = to_units(nano)
    if units <= 0 or units * 1000 != to_milli(nano):
        return 0
    return 0 if has_pod_level_resources(pod) or not is_guaranteed(pod) else units


def pod_exclusive_cpus(pod: Pod) -> int:
    """Return how many exclusive CPUs a pod has at most at any time (KEP-753)."""
    sidecars = initial = main = 0
    for container in _containers(pod):
        asked = exclusive_cpus(pod, container.spec)
        if container.kind is ContainerKind.MAIN:
            main += asked
        elif container.is_sidecar:
            sidecars += asked
        else:
            initial = max(initial, sidecars + asked)
    return max(initial, sidecars + main)


def _containers(pod: Pod) -> Iterator[PodContainer]:
    body = spec(pod)
    for init in body.initContainers or ():
        yield PodContainer(ContainerKind.INIT, init)
    for main in body.containers or ():
        yield PodContainer(ContainerKind.MAIN, main)


def _reusable(state: CpuState, pod: Pod) -> int:
    """Return the CPUs of a pod's init containers that no container that stays has."""
    if pod_uid(pod) not in state.exclusive:
        return 0
    ended = kept = 0
    for container in _containers(pod):
        own = state.own(pod_uid(pod), container.spec.name) or 0
        if container.kind is ContainerKind.INIT and not container.is_sidecar:
            ended |= own
        else:
            kept |= own
    return ended & ~kept
