"""Gathers ResourceSlices to pools: only complete, valid pools of the newest generation count.

A driver that changes a pool writes several slices one after the other; in between the pool is
incomplete, and nothing is allocated from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from lightkube.models.core_v1 import NodeSelector
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.models.resource_v1 import Device, ResourceSlice

from kubelet_trio.managers.claims.allocation.devices import (
    CounterKey,
    DeviceId,
    Offered,
    plain,
    read_attributes,
    read_capacity,
    read_consumption,
)
from kubelet_trio.model import matches_node_selector, parse_quantity


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What slices select a node by."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool of one driver, in its newest generation.

    Attributes:
        driver: the driver's name.
        name: the pool's.
        devices: those that this node can reach, in the order of their slices' names.
        counters: the pool's counters in nano-units, untouched.
        consumers: what each device of the pool takes of the counters, unreachable ones too.
        problem: why nothing is allocated from it now; "": something is.
    """

    driver: str
    name: str
    devices: tuple[Offered, ...] = ()
    counters: Mapping[CounterKey, int] = field(default_factory=dict)
    consumers: Mapping[DeviceId, Mapping[CounterKey, int]] = field(default_factory=dict)
    problem: str = ""

    def __str__(self) -> str:
        return f"{self.driver}/{self.name}"


def gather_pools(slices: Iterable[ResourceSlice], node: NodeFacts) -> list[Pool]:
    """Return the pools that have slices for a node, in the order of their names."""
    by_pool: dict[tuple[str, str], list[ResourceSlice]] = {}
    for one in slices:
        if _reaches(one, node):
            by_pool.setdefault((one.spec.driver, one.spec.pool.name), []).append(one)
    return [_pool(driver, name, by_pool[driver, name], node) for driver, name in sorted(by_pool)]


def _reaches(one: ResourceSlice, node: NodeFacts) -> bool:
    spec = one.spec
    if spec.perDeviceNodeSelection:
        # Counter sets come in slices of their own, which every node of the pool needs.
        return not spec.devices or any(_device_reaches(d, node) for d in spec.devices)
    return _selects(spec.nodeName, spec.allNodes, spec.nodeSelector, node)


def _device_reaches(device: Device, node: NodeFacts) -> bool:
    return _selects(device.nodeName, device.allNodes, device.nodeSelector, node)


def _selects(
    name: str | None, everywhere: bool | None, selector: NodeSelector | None, node: NodeFacts
) -> bool:
    if name:
        return name == node.name
    if everywhere:
        return True
    return selector is not None and matches_node_selector(selector, node.name, node.labels)


def _pool(driver: str, name: str, slices: list[ResourceSlice], node: NodeFacts) -> Pool:
    newest = max(one.spec.pool.generation for one in slices)
    current = [one for one in slices if one.spec.pool.generation == newest]
    current.sort(key=lambda one: (one.metadata or ObjectMeta()).name or "")
    wanted = current[0].spec.pool.resourceSliceCount
    if len(current) != wanted:
        problem = f"pool {driver}/{name} is being updated: {len(current)} of {wanted} slices"
        return Pool(driver, name, problem=problem)
    try:
        counters = _counters(current)
        devices = [(one, device) for one in current for device in one.spec.devices or ()]
        consumers = {
            DeviceId(driver, name, device.name): read_consumption(device) for _, device in devices
        }
        if len(consumers) < len(devices):
            raise ValueError(f"duplicate device name {_twice(devices)}")
        for id_, taken in consumers.items():
            for key in taken.keys() - counters.keys():
                raise ValueError(f"device {id_.device}: no counter {key[1]} in set {key[0]}")
        offered = tuple(
            _offered(one, device, counters_of=consumers)
            for one, device in devices
            if not one.spec.perDeviceNodeSelection or _device_reaches(device, node)
        )
    except ValueError as exc:
        return Pool(driver, name, problem=f"pool {driver}/{name} is invalid: {exc}")
    return Pool(driver, name, offered, counters, consumers)


def _twice(devices: list[tuple[ResourceSlice, Device]]) -> str:
    seen: set[str] = set()
    for _, device in devices:
        if device.name in seen:
            return str(device.name)
        seen.add(device.name)
    return ""


def _counters(slices: list[ResourceSlice]) -> dict[CounterKey, int]:
    return {
        (one.name, name): parse_quantity(plain(counter).get("value", ""))
        for each in slices
        for one in each.spec.sharedCounters or ()
        for name, counter in one.counters.items()
    }


def _offered(
    one: ResourceSlice,
    device: Device,
    *,
    counters_of: Mapping[DeviceId, Mapping[CounterKey, int]],
) -> Offered:
    id_ = DeviceId(one.spec.driver, one.spec.pool.name, device.name)
    per_device = bool(one.spec.perDeviceNodeSelection)
    return Offered(
        id_,
        device,
        tuple(one.spec.skipNodeOperations or ()),
        (device.nodeName if per_device else one.spec.nodeName) or "",
        read_attributes(device),
        read_capacity(device),
        counters_of[id_],
        _refusal(device),
    )


def _refusal(device: Device) -> str:
    """Return why this node does not allocate a device at all; "": it does."""
    if device.bindingConditions or device.bindsToNode:
        return "has binding conditions (KEP-5007), for which a scheduler must wait"
    if device.allowMultipleAllocations:
        return "may be allocated several times (KEP-5075), which this agent does not do"
    if device.nodeAllocatableResources:
        return "takes resources of the node (KEP-5517), which this agent does not count"
    if any(use.compatibilityGroups for use in device.consumesCounters or ()):
        return "has compatibility groups, which this agent does not know"
    return ""
