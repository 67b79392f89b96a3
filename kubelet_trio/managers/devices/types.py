"""Devices as plugins list them, and what containers have of them: immutable values.

What an admission asks of each of them again and again is computed once, when they are made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from kubelet_trio.managers.types import mask_of
from kubelet_trio.model import PodUid

HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"  # constants.go of the device plugin API
NO_NODE = -1  # nodeWithoutTopology: the "NUMA node" of devices that name none
_MOST_NODES = 1024  # of Linux (MAX_NUMNODES); a mask with a plugin's number could fill the memory


@dataclass(frozen=True, slots=True)
class Device:
    """A device, as its plugin lists it.

    Attributes:
        id: what plugin and agent call it; not a path.
        health: `Healthy`; anything else means that no container gets it.
        nodes: the NUMA nodes that it is near to, as listed; () if the plugin names none.
        mask: the mask of these nodes; numbers that no machine has are left out.
    """

    id: str
    health: str = HEALTHY
    nodes: tuple[int, ...] = ()
    mask: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        mask = mask_of(node for node in self.nodes if 0 <= node < _MOST_NODES)
        object.__setattr__(self, "mask", mask)


@dataclass(frozen=True, slots=True)
class Listed:
    """The devices of one resource.

    Attributes:
        devices: by ID, as last listed.
        is_served: whether the plugin is connected; the devices of one that is not are unhealthy.
        healthy: the IDs that a container may get.
        has_nodes: whether any device names a NUMA node: then the resource is aligned.
        masks: how many devices, healthy or not, have each mask of NUMA nodes.
    """

    devices: Mapping[str, Device] = field(default_factory=dict)
    is_served: bool = True
    healthy: frozenset[str] = field(init=False, repr=False, compare=False)
    has_nodes: bool = field(init=False, repr=False, compare=False)
    masks: Mapping[int, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        every = self.devices.values() if self.is_served else ()
        healthy = frozenset(device.id for device in every if device.health == HEALTHY)
        object.__setattr__(self, "healthy", healthy)
        has_nodes = any(device.nodes for device in self.devices.values())
        object.__setattr__(self, "has_nodes", has_nodes)
        object.__setattr__(self, "masks", self.count_masks(self.devices))

    def count_masks(self, ids: Iterable[str]) -> Counter[int]:
        """Count devices by mask: a machine has few, and a plugin may have thousands of devices."""
        return Counter([self.devices[name].mask for name in ids])

    def by_node(self, ids: Iterable[str]) -> dict[int, tuple[str, ...]]:
        """Return some devices by NUMA node (-1: none named); one near to two nodes is at both."""
        found: dict[int, list[str]] = {}
        for name in ids:
            device = self.devices.get(name)
            for node in (device.nodes if device is not None else ()) or (NO_NODE,):
                found.setdefault(node, []).append(name)
        return {node: tuple(names) for node, names in found.items()}


@dataclass(frozen=True, slots=True)
class DeviceShare:
    """The devices of one resource that a container has.

    Attributes:
        by_node: the IDs by NUMA node, -1 for those without; one near to two nodes is at both.
        response: the plugin's encoded ContainerAllocateResponse; None: reserved only.
        affinity: the mask of NUMA nodes that a reservation was made for; None: any.
        ids: all of the IDs.
    """

    by_node: Mapping[int, tuple[str, ...]]
    response: bytes | None = None
    affinity: int | None = None
    ids: frozenset[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "ids", frozenset().union(*self.by_node.values()))


Shares = Mapping[str, DeviceShare]  # by resource
_NOTHING: Shares = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class DeviceState:
    """Which container has which devices.

    Attributes:
        pods: the shares by pod, container and resource. Read only.
    """

    pods: Mapping[PodUid, Mapping[str, Shares]] = field(default_factory=dict)

    def shares(self, uid: PodUid, container: str) -> Shares:
        """Return the devices of a container, by resource."""
        return self.pods.get(uid, {}).get(container, _NOTHING)

    def each(self) -> Iterator[tuple[PodUid, str, str, DeviceShare]]:
        """Yield pod, container, resource and share."""
        for uid, containers in self.pods.items():
            for container, shares in containers.items():
                for resource, share in shares.items():
                    yield uid, container, resource, share

    def used(self, resource: str) -> frozenset[str]:
        """Return the IDs of a resource that containers have."""
        return frozenset().union(
            *(
                shares[resource].ids
                for containers in self.pods.values()
                for shares in containers.values()
                if resource in shares
            )
        )

    def is_shared(self, resource: str) -> bool:
        """Whether any container has, or had asked for, devices of a resource."""
        return any(name == resource for _, _, name, _ in self.each())

    def with_share(
        self, uid: PodUid, container: str, resource: str, share: DeviceShare
    ) -> DeviceState:
        """Return the state with a container's devices of one resource replaced."""
        containers = self.pods.get(uid, {})
        shares = {**containers.get(container, {}), resource: share}
        return DeviceState({**self.pods, uid: {**containers, container: shares}})

    def without_share(self, uid: PodUid, container: str, resource: str) -> DeviceState:
        """Return the state without a container's devices of one resource."""
        containers = self.pods.get(uid, {})
        shares = {n: s for n, s in containers.get(container, {}).items() if n != resource}
        return DeviceState({**self.pods, uid: {**containers, container: shares}})

    def without(self, uid: PodUid) -> DeviceState:
        """Return the state without a pod; the same state if it has nothing."""
        if uid not in self.pods:
            return self
        return DeviceState({u: c for u, c in self.pods.items() if u != uid})
