"""The options of the static policy (cpuManagerPolicyOptions), and which exclude each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kubelet_trio.managers.cpus.errors import CpuConfigError
from kubelet_trio.managers.types import Machine

FULL_CORES = "full-pcpus-only"
ACROSS_NODES = "distribute-cpus-across-numa"
BY_SOCKET = "align-by-socket"
ACROSS_CORES = "distribute-cpus-across-cores"
STRICT_RESERVATION = "strict-cpu-reservation"
BY_CACHE = "prefer-align-cpus-by-uncorecache"

_EXCLUSIVE = (
    (FULL_CORES, ACROSS_CORES),
    (ACROSS_NODES, ACROSS_CORES),
    (BY_CACHE, ACROSS_CORES),
    (BY_CACHE, ACROSS_NODES),
)


@dataclass(frozen=True, slots=True)
class CpuOptions:
    """Which options are on.

    Attributes:
        full_cores: full-pcpus-only: only whole cores are given away.
        across_nodes: distribute-cpus-across-numa: equal shares where one node is not enough.
        by_socket: align-by-socket: a socket counts as close, not only a NUMA node.
        across_cores: distribute-cpus-across-cores: threads of different cores first.
        strict_reservation: strict-cpu-reservation: reserved CPUs are not in the shared pool.
        by_cache: prefer-align-cpus-by-uncorecache: CPUs that share a last-level cache first.
    """

    full_cores: bool = False
    across_nodes: bool = False
    by_socket: bool = False
    across_cores: bool = False
    strict_reservation: bool = False
    by_cache: bool = False


NO_OPTIONS = CpuOptions()

_FIELDS = {
    FULL_CORES: "full_cores",
    ACROSS_NODES: "across_nodes",
    BY_SOCKET: "by_socket",
    ACROSS_CORES: "across_cores",
    STRICT_RESERVATION: "strict_reservation",
    BY_CACHE: "by_cache",
}


def cpu_options(names: Mapping[str, bool]) -> CpuOptions:
    """Return the options of cpuManagerPolicyOptions; one that is missing is off.

    Raises CpuConfigError for an unknown one, and for two that exclude each other.
    """
    for name in names:
        if name not in _FIELDS:
            raise CpuConfigError(f'unknown CPU Manager Policy option: "{name}"')
    for one, other in _EXCLUSIVE:
        if names.get(one) and names.get(other):
            raise CpuConfigError(
                f"static policy options {one} and {other} can not be used at the same time"
            )
    return CpuOptions(**{_FIELDS[name]: value for name, value in names.items()})


def check_options(options: CpuOptions, machine: Machine, topology_policy: str) -> None:
    """Check the options against the machine and topologyManagerPolicy. Raises CpuConfigError."""
    if not options.by_socket:
        return
    if topology_policy == "single-numa-node":
        raise CpuConfigError(
            f"topologyManagerPolicy {topology_policy} is incompatible with the CPU manager's policy"
            f" option {BY_SOCKET}: a socket may have several NUMA nodes"
        )
    sockets = len({cpu.package for cpu in machine.cpus})
    nodes = len({cpu.node for cpu in machine.cpus})
    if sockets > nodes:
        raise CpuConfigError(
            f"the CPU manager's policy option {BY_SOCKET} does not fit this machine: it has more"
            f" sockets ({sockets}) than NUMA nodes ({nodes})"
        )
