"""Reads the machine: CPUs, NUMA nodes, caches, memory and huge pages.

From /sys/devices/system, as cAdvisor does for the Go kubelet, with /proc for what containers and
small machines do not have there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from kubelet_trio.managers.topology.cores import CPU_DIR, Core, read_cores, uncore_caches
from kubelet_trio.managers.topology.errors import TopologyError
from kubelet_trio.managers.topology.files import KernelFiles
from kubelet_trio.managers.topology.memory import read_distances, read_huge_pages, read_memory
from kubelet_trio.managers.types import Cpu, Machine, NumaNode

_NODE_DIR = "sys/devices/system/node"
_CPUINFO = "proc/cpuinfo"
_CPUINFO_LIMIT = 32 << 20  # bytes: about 2 KiB for each of 8,192 CPUs
_LAST_CPU = (1 << 16) - 1


def read_machine(root: Path = Path("/")) -> Machine:
    """Return the machine whose /sys and /proc are below `root`. Blocks.

    A machine without NUMA nodes has one node with all CPUs and the memory of /proc/meminfo. One
    whose /sys says nothing of cores has those of /proc/cpuinfo, or one for each CPU.

    Raises:
        TopologyError: a file cannot be read or has another form, or there is no CPU.
    """
    files = KernelFiles(root)
    online = files.cpus(f"{CPU_DIR}/online")
    by_node = _cpus_by_node(files, online)
    cores = {node: read_cores(files, cpus) for node, cpus in by_node.items()}
    if not any(cores.values()):
        cores = _cores_of_cpuinfo(files, by_node)
    cpus = _cpus(files, cores)
    return Machine(
        cpus,
        _nodes(files, cpus, tuple(by_node)),
        files.cpus(f"{CPU_DIR}/isolated") or frozenset(),
        _present(files) - (online or frozenset(cpu.id for cpu in cpus)),
    )


def _cpus_by_node(files: KernelFiles, online: frozenset[int] | None) -> dict[int, frozenset[int]]:
    """Return the online CPUs of each NUMA node; node 0 has all if the machine names none."""
    nodes = files.nodes(_NODE_DIR)
    found: dict[int, frozenset[int]] = {}
    homes: dict[int, int] = {}
    for node in nodes:
        base = f"{_NODE_DIR}/node{node}"
        listed = files.cpus(f"{base}/cpulist")
        cpus = frozenset(files.numbered(base, "cpu")) if listed is None else listed
        found[node] = cpus if online is None else cpus & online
        for cpu in found[node]:
            if homes.setdefault(cpu, node) != node:
                raise TopologyError(f"{base}/cpulist", f"CPU {cpu} is in node {homes[cpu]} too")
    if homes:
        return found
    everything = online or frozenset(files.numbered(CPU_DIR, "cpu")) or _processors(files)
    if not everything:
        raise TopologyError(CPU_DIR, f"no CPU is online, neither here nor in /{_CPUINFO}")
    # Nodes without any CPU next to CPUs without a node: a container's partial /sys.
    return {**found, (nodes[0] if nodes else 0): everything}


def _cpus(files: KernelFiles, cores: Mapping[int, list[Core]]) -> tuple[Cpu, ...]:
    every = [core for group in cores.values() for core in group]
    places = sorted({(core.package, core.die) for core in every})
    dies = {place: number for number, place in enumerate(places)}
    cpus = [
        Cpu(cpu, core.id, caches[core.id], node, core.package, dies[core.package, core.die])
        for node, group in cores.items()
        for caches in [uncore_caches(files, group)]
        for core in group
        for cpu in core.threads
    ]
    return tuple(sorted(cpus))


def _nodes(files: KernelFiles, cpus: Iterable[Cpu], nodes: tuple[int, ...]) -> tuple[NumaNode, ...]:
    of_node: dict[int, set[int]] = {}
    for cpu in cpus:
        of_node.setdefault(cpu.node, set()).add(cpu.id)
    return tuple(
        _node(files, node, frozenset(of_node.get(node, ())), len(nodes)) for node in sorted(nodes)
    )


def _node(files: KernelFiles, node: int, cpus: frozenset[int], nodes: int) -> NumaNode:
    base = f"{_NODE_DIR}/node{node}"
    memory = read_memory(files, f"{base}/meminfo")
    pages = read_huge_pages(files, f"{base}/hugepages")
    if memory is None and nodes == 1:
        # The only node has all there is. The Go kubelet counts none without NUMA in the kernel.
        memory = read_memory(files, "proc/meminfo")
        pages = pages or read_huge_pages(files, "sys/kernel/mm/hugepages")
    distances = read_distances(files, f"{base}/distance", nodes)
    return NumaNode(node, cpus, memory or 0, pages, distances)


def _present(files: KernelFiles) -> frozenset[int]:
    present = files.cpus(f"{CPU_DIR}/present")
    return frozenset(files.numbered(CPU_DIR, "cpu")) if present is None else present


def _processors(files: KernelFiles) -> frozenset[int]:
    """Return the CPUs of /proc/cpuinfo."""
    return frozenset(_blocks(files))


def _cores_of_cpuinfo(
    files: KernelFiles, by_node: Mapping[int, frozenset[int]]
) -> dict[int, list[Core]]:
    """Return cores by /proc/cpuinfo: a CPU of which it says nothing is a core of package 0."""
    known = _blocks(files)
    cores: dict[int, list[Core]] = {}
    for node, cpus in by_node.items():
        threads: dict[tuple[int, int, int], list[int]] = {}
        for cpu in sorted(cpus):
            core, package = known.get(cpu, (None, 0))
            # Told apart by themselves where no core is named.
            key = (package, 0, core) if core is not None else (package, 1, cpu)
            threads.setdefault(key, []).append(cpu)
        cores[node] = [Core(tuple(group), key[0], 0) for key, group in threads.items()]
    return cores


def _blocks(files: KernelFiles) -> dict[int, tuple[int | None, int]]:
    """Return core and package of each processor of /proc/cpuinfo."""
    text = files.text(_CPUINFO, _CPUINFO_LIMIT) or ""
    line = re.compile(r"^(processor|core id|physical id)[ \t]*:[ \t]*([0-9]{1,5})$", re.MULTILINE)
    found: dict[int, tuple[int | None, int]] = {}
    cpu = None
    for match in line.finditer(text):
        number = int(match[2])
        if match[1] == "processor":
            cpu = number if number <= _LAST_CPU else None
            if cpu is not None:
                found[cpu] = (None, 0)
        elif cpu is not None:
            core, package = found[cpu]
            found[cpu] = (number, package) if match[1] == "core id" else (core, number)
    return found
