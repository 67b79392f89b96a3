"""The allocation of a claim, as it stands in its status."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lightkube.models.core_v1 import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from lightkube.models.resource_v1 import (
    AllocationResult,
    DeviceAllocationConfiguration,
    DeviceAllocationResult,
    DeviceRequestAllocationResult,
    ResourceClaim,
)

from kubelet_trio.managers.claims.allocation.devices import DeviceId, Offered
from kubelet_trio.managers.claims.allocation.requests import Asked, Option, devices_of


@dataclass(frozen=True, slots=True)
class Taken:
    """A device, and what takes it."""

    option: Option
    device: Offered


def result_of(asked: Asked, taken: Sequence[Taken]) -> AllocationResult:
    """Return the allocation of a claim."""
    results = [
        DeviceRequestAllocationResult(
            device=one.device.id.device,
            driver=one.device.id.driver,
            pool=one.device.id.pool,
            request=one.option.name,
            adminAccess=True if one.option.admin else None,
            skipNodeOperations=list(one.device.skips) or None,
            tolerations=list(one.option.tolerations) or None,
        )
        for one in taken
    ]
    config = list(_config(asked, taken))
    return AllocationResult(
        devices=DeviceAllocationResult(config=config or None, results=results),
        nodeSelector=_node_selector(taken),
    )


def _config(asked: Asked, taken: Sequence[Taken]) -> Iterator[DeviceAllocationConfiguration]:
    """Yield the classes' configuration, each class once, then the claim's."""
    chosen: dict[str, Option] = {}
    for one in taken:
        chosen.setdefault(one.option.name, one.option)
    by_class: dict[str, list[Option]] = {}
    for option in chosen.values():
        by_class.setdefault(option.class_name, []).append(option)
    for options in by_class.values():
        spec = options[0].device_class.spec
        names = [option.name for option in options]
        for each in (spec.config if spec is not None else None) or ():
            yield DeviceAllocationConfiguration(
                source="FromClass",
                opaque=each.opaque,
                # Without names it is for all requests.
                requests=None if len(names) == len(chosen) else names,
            )
    names_taken = {option.request for option in chosen.values()} | chosen.keys()
    for mine in devices_of(asked.claim).config or ():
        if not mine.requests or names_taken.intersection(mine.requests):
            yield DeviceAllocationConfiguration(
                source="FromClaim", opaque=mine.opaque, requests=mine.requests or None
            )


def _node_selector(taken: Sequence[Taken]) -> NodeSelector | None:
    for one in taken:
        if one.device.node_name:
            name = NodeSelectorRequirement("metadata.name", "In", [one.device.node_name])
            return NodeSelector([NodeSelectorTerm(matchFields=[name])])
    return None


def held_devices(claim: ResourceClaim) -> Iterator[DeviceId]:
    """Yield the devices that a claim keeps from others: not those of its admin access."""
    allocation = claim.status.allocation if claim.status is not None else None
    devices = allocation.devices if allocation is not None else None
    for one in (devices.results if devices is not None else None) or ():
        if not one.adminAccess:
            yield DeviceId(one.driver, one.pool, one.device)
