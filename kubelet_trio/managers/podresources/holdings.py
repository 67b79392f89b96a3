"""Reads what containers hold out of the managers' states. Pure, and cheap enough for each List."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from kubelet_trio.managers.cpus import CpuManager, CpuState, cpu_ids
from kubelet_trio.managers.devices.inventory import Inventory
from kubelet_trio.managers.devices.types import NO_NODE, DeviceState
from kubelet_trio.managers.memory import (
    Block,
    MemoryState,
    allocatable_blocks,
    container_blocks,
)
from kubelet_trio.managers.podresources.types import DeviceUse, MemoryUse, ResourceUse
from kubelet_trio.managers.types import nodes_of
from kubelet_trio.model import PodUid


class ManagerRules(Protocol):
    """A manager on this node, of which only the rules matter here (`node.Provider`)."""

    @property
    def rules(self) -> object: ...


class NodeManagers(Protocol):
    """The managers of a node by name: `cpu`, `memory`, `devices` (`node.ResourceManagers`)."""

    def state(self, name: str) -> object:
        """Return a manager's state, None if there is no such manager."""
        ...

    def provider(self, name: str) -> ManagerRules | None:
        """Return a manager, None if there is no such manager."""
        ...


def held_by(managers: NodeManagers, uid: PodUid, container: str) -> ResourceUse:
    """Return what a container holds."""
    cpus, memory, devices = (managers.state(name) for name in ("cpu", "memory", "devices"))
    own = cpus.own(uid, container) if isinstance(cpus, CpuState) else None
    blocks = container_blocks(memory, uid, container) if isinstance(memory, MemoryState) else None
    return ResourceUse(
        tuple(sorted(cpu_ids(own or 0))),
        _memory(blocks or ()),
        tuple(_held(devices, uid, container)) if isinstance(devices, DeviceState) else (),
    )


def for_containers(managers: NodeManagers) -> ResourceUse:
    """Return what containers could get on an empty node: see `ResourcesView.allocatable`."""
    cpus, devices = (_rules(managers, name) for name in ("cpu", "devices"))
    memory = managers.state("memory")
    return ResourceUse(
        tuple(sorted(cpus.allocatable)) if isinstance(cpus, CpuManager) else (),
        _memory(allocatable_blocks(memory)) if isinstance(memory, MemoryState) else (),
        tuple(_healthy(devices)) if isinstance(devices, Inventory) else (),
    )


def _rules(managers: NodeManagers, name: str) -> object:
    provider = managers.provider(name)
    return provider.rules if provider is not None else None


def _memory(blocks: Iterable[Block]) -> tuple[MemoryUse, ...]:
    return tuple(MemoryUse(b.type, b.size, tuple(nodes_of(b.nodes))) for b in blocks)


def _held(state: DeviceState, uid: PodUid, container: str) -> Iterator[DeviceUse]:
    """Yield a container's devices with the NUMA nodes that its checkpoint has."""
    for resource, share in sorted(state.shares(uid, container).items()):
        nodes: dict[str, list[int]] = {}
        for node, names in sorted(share.by_node.items()):
            for name in names:
                nodes.setdefault(name, []).extend(() if node == NO_NODE else (node,))
        for name in sorted(nodes):
            yield DeviceUse(resource, name, tuple(nodes[name]) or None)


def _healthy(inventory: Inventory) -> Iterator[DeviceUse]:
    """Yield the devices that containers may get, of plugins that are connected."""
    for resource, listed in sorted(inventory.rules.listed.items()):
        for name in sorted(listed.healthy):
            yield DeviceUse(resource, name, tuple(sorted(listed.devices[name].nodes)) or None)
