"""Who holds what of the machine: the input of its drawing, and the page that carries both.

The page is the JSON of the control socket's `/topology`. Sets of CPUs are lists such as `0-3,8`,
as in the Go kubelet's checkpoints; sets of NUMA nodes are arrays.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from kubelet_trio.managers.types import Cpu, Machine, NumaNode, mask_of, nodes_of
from kubelet_trio.model import format_cpus, parse_cpus


@dataclass(frozen=True, slots=True)
class MemoryHolding:
    """Memory of a group of NUMA nodes.

    Attributes:
        resource: `memory`, or `hugepages-<size>`.
        nodes: the mask of the group; how much of each node is not known if there are several.
        amount: bytes.
    """

    resource: str
    nodes: int
    amount: int


@dataclass(frozen=True, slots=True)
class MachineDevice:
    """One device of a plugin; `nodes` is the mask of its NUMA nodes, None if it has none."""

    resource: str
    id: str
    nodes: int | None = None
    healthy: bool = True


@dataclass(frozen=True, slots=True)
class ContainerHoldings:
    """What one container has to itself; `devices` is resource name to device IDs."""

    namespace: str
    pod: str
    container: str
    cpus: frozenset[int] = frozenset()
    memory: tuple[MemoryHolding, ...] = ()
    devices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MachineHoldings:
    """Who holds what.

    Attributes:
        reserved: CPUs of the system, which no container has to itself.
        shared: CPUs of all containers without their own, as the CPU manager has them.
        containers: those that hold something. Of two with the same CPU (an init container and one
            that comes after it) the later one is drawn.
        devices: all devices, also those that nobody has.
        reserved_memory: memory of the system, one node each.
        policies: such as {"cpu": "static"}; for the heading.
    """

    reserved: frozenset[int] = frozenset()
    shared: frozenset[int] = frozenset()
    containers: tuple[ContainerHoldings, ...] = ()
    devices: tuple[MachineDevice, ...] = ()
    reserved_memory: tuple[MemoryHolding, ...] = ()
    policies: Mapping[str, str] = field(default_factory=dict)


class _Cpu(msgspec.Struct):
    id: int
    core: int
    cache: int
    node: int
    package: int
    die: int


class _HugePages(msgspec.Struct):
    size: int
    pages: int


class _Node(msgspec.Struct):
    id: int
    cpus: str
    memory: int
    huge_pages: list[_HugePages]
    distances: list[int]


class _Machine(msgspec.Struct):
    cpus: list[_Cpu]
    nodes: list[_Node]
    isolated: str
    offline: str


class _Memory(msgspec.Struct):
    resource: str
    nodes: list[int]
    bytes: int


class _Device(msgspec.Struct):
    resource: str
    id: str
    nodes: list[int] | None
    healthy: bool


class _Container(msgspec.Struct):
    namespace: str
    pod: str
    container: str
    cpus: str
    memory: list[_Memory]
    devices: dict[str, list[str]]


class _Holdings(msgspec.Struct):
    policies: dict[str, str]
    reserved: str
    shared: str
    reserved_memory: list[_Memory]
    containers: list[_Container]
    devices: list[_Device]


class _Page(msgspec.Struct):
    machine: _Machine
    holdings: _Holdings | None = None


def topology_page(machine: Machine, holdings: MachineHoldings | None) -> dict[str, Any]:
    """Return the page, ready for JSON; without holdings where no manager keeps any."""
    page = _Page(_machine_row(machine), None if holdings is None else _holdings_row(holdings))
    built: dict[str, Any] = msgspec.to_builtins(page)
    return built


def read_topology_page(page: object) -> tuple[Machine, MachineHoldings | None]:
    """Return what `topology_page` was given. Raises ValueError for another page's JSON."""
    found = msgspec.convert(page, _Page)
    machine = Machine(
        tuple(Cpu(c.id, c.core, c.cache, c.node, c.package, c.die) for c in found.machine.cpus),
        tuple(_node(node) for node in found.machine.nodes),
        parse_cpus(found.machine.isolated),
        parse_cpus(found.machine.offline),
    )
    return machine, None if found.holdings is None else _holdings(found.holdings)


def _machine_row(machine: Machine) -> _Machine:
    return _Machine(
        [_Cpu(c.id, c.core, c.cache, c.node, c.package, c.die) for c in machine.cpus],
        [
            _Node(
                node.id,
                format_cpus(node.cpus),
                node.memory,
                [_HugePages(size, pages) for size, pages in node.huge_pages.items()],
                list(node.distances),
            )
            for node in machine.nodes
        ],
        format_cpus(machine.isolated),
        format_cpus(machine.offline),
    )


def _holdings_row(holdings: MachineHoldings) -> _Holdings:
    return _Holdings(
        dict(holdings.policies),
        format_cpus(holdings.reserved),
        format_cpus(holdings.shared),
        _memory_rows(holdings.reserved_memory),
        [
            _Container(
                each.namespace,
                each.pod,
                each.container,
                format_cpus(each.cpus),
                _memory_rows(each.memory),
                {name: list(ids) for name, ids in each.devices.items()},
            )
            for each in holdings.containers
        ],
        [
            _Device(
                device.resource,
                device.id,
                None if device.nodes is None else list(nodes_of(device.nodes)),
                device.healthy,
            )
            for device in holdings.devices
        ],
    )


def _memory_rows(held: Iterable[MemoryHolding]) -> list[_Memory]:
    return [_Memory(each.resource, list(nodes_of(each.nodes)), each.amount) for each in held]


def _node(row: _Node) -> NumaNode:
    pages = {each.size: each.pages for each in row.huge_pages}
    return NumaNode(row.id, parse_cpus(row.cpus), row.memory, pages, tuple(row.distances))


def _holdings(row: _Holdings) -> MachineHoldings:
    return MachineHoldings(
        parse_cpus(row.reserved),
        parse_cpus(row.shared),
        tuple(
            ContainerHoldings(
                each.namespace,
                each.pod,
                each.container,
                parse_cpus(each.cpus),
                _memory(each.memory),
                {name: tuple(ids) for name, ids in each.devices.items()},
            )
            for each in row.containers
        ),
        tuple(
            MachineDevice(each.resource, each.id, _mask(each.nodes), each.healthy)
            for each in row.devices
        ),
        _memory(row.reserved_memory),
        row.policies,
    )


def _memory(rows: Iterable[_Memory]) -> tuple[MemoryHolding, ...]:
    return tuple(MemoryHolding(row.resource, _mask(row.nodes) or 0, row.bytes) for row in rows)


def _mask(nodes: list[int] | None) -> int | None:
    if nodes is None:
        return None
    if any(not 0 <= node < 1024 for node in nodes):
        raise ValueError("NUMA nodes are numbered from 0 to 1023")
    return mask_of(nodes)
