"""Small machines for tests of the node's managers."""

from __future__ import annotations

from collections.abc import Mapping

from kubelet_trio.managers import Cpu, Machine, ManagerSettings, NumaNode
from kubelet_trio.managers.settings import TopologyOptions

GI = 1 << 30


def two_nodes(cores: int = 4, memory: int = 8 * GI) -> Machine:
    """Return a machine of two sockets, each a NUMA node of so many cores with two threads."""
    cpus = tuple(
        Cpu(core + thread * 2 * cores, core, core // cores, core // cores, core // cores)
        for thread in range(2)
        for core in range(2 * cores)
    )
    nodes = tuple(
        NumaNode(
            node,
            frozenset(cpu.id for cpu in cpus if cpu.node == node),
            memory,
            distances=(10, 20) if node == 0 else (20, 10),
        )
        for node in range(2)
    )
    return Machine(tuple(sorted(cpus)), nodes)


def static(
    *,
    options: Mapping[str, bool] | None = None,
    topology: str = "none",
    memory: bool = False,
    reserved: frozenset[int] = frozenset({0}),
) -> ManagerSettings:
    """Return settings with the static policy of CPUs, and that of memory if asked for."""
    return ManagerSettings(
        cpu_policy="static",
        cpu_options=options or {},
        reserved_cpus=reserved,
        memory_policy="Static" if memory else "None",
        reserved_memory=((0, {"memory": "1Gi"}),) if memory else (),
        reserved_memory_bytes={"memory": GI} if memory else {},
        topology_policy=topology,
        topology_options=TopologyOptions(),
    )
