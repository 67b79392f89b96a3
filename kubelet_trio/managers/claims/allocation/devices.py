"""Devices as the allocation sees them: identity, attributes, capacity, taints and counters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import msgspec
from lightkube.models.resource_v1 import Device, DeviceTaint, DeviceToleration

from kubelet_trio.model import parse_quantity

# Bool, int and string attributes as they are, versions as `Version`, lists as tuples.
AttributeValue: TypeAlias = "bool | int | str | Version | tuple[Any, ...]"
CounterKey: TypeAlias = tuple[str, str]  # counter set and counter

_SCALARS = ("int", "bool", "string")
_LISTS = ("ints", "bools", "strings", "versions")


class AllocationError(Exception):
    """The devices of a claim cannot be allocated now; the text says which claim, and why."""


class DeviceId(NamedTuple):
    """The unique name of a device."""

    driver: str
    pool: str
    device: str

    def __str__(self) -> str:
        return "/".join(self)


class Version(str):
    """A version attribute, in its text form (semver 2.0.0)."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Offered:
    """A device of a complete, valid pool that this node can reach.

    Attributes:
        id: its name.
        device: as its slice has it.
        skips: the slice's `skipNodeOperations`.
        node_name: the only node that has it; "": it is not bound to one by name.
        attributes: its values by qualified name, as written.
        capacity: in nano-units by qualified name, as written.
        consumes: what it takes of its pool's counters, in nano-units.
        refused: why this node never allocates it; "": it does.
    """

    id: DeviceId
    device: Device
    skips: tuple[str, ...] = ()
    node_name: str = ""
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)
    capacity: Mapping[str, int] = field(default_factory=dict)
    consumes: Mapping[CounterKey, int] = field(default_factory=dict)
    refused: str = ""

    def attribute(self, name: str) -> AttributeValue | None:
        """Return an attribute by its fully qualified name; None if the device has none."""
        if name in self.attributes:
            return self.attributes[name]
        domain, slash, short = name.partition("/")
        # A name without a domain is of the driver's own.
        return self.attributes.get(short) if slash and domain == self.id.driver else None


def plain(value: Any) -> dict[str, Any]:
    """Return a struct of the models as a mapping; decoded JSON has mappings in maps anyway."""
    result: dict[str, Any] = value if isinstance(value, dict) else msgspec.to_builtins(value)
    return {key: item for key, item in result.items() if item is not None}


def read_attributes(device: Device) -> dict[str, AttributeValue]:
    """Return a device's attributes. Raises ValueError for one without a value."""
    return {
        name: _attribute(name, plain(value)) for name, value in (device.attributes or {}).items()
    }


def _attribute(name: str, value: dict[str, Any]) -> AttributeValue:
    for kind in _SCALARS:
        if kind in value:
            scalar: bool | int | str = value[kind]
            return scalar
    if "version" in value:
        return Version(value["version"])
    for kind in _LISTS:
        if kind in value:
            return tuple(Version(v) if kind == "versions" else v for v in value[kind])
    raise ValueError(f"attribute {name} has no value that is known")


def read_capacity(device: Device) -> dict[str, int]:
    """Return a device's capacity in nano-units. Raises ValueError."""
    return {
        name: parse_quantity(plain(value).get("value", ""))
        for name, value in (device.capacity or {}).items()
    }


def read_consumption(device: Device) -> dict[CounterKey, int]:
    """Return what a device takes of counters, in nano-units. Raises ValueError."""
    total: dict[CounterKey, int] = {}
    for consumption in device.consumesCounters or ():
        for name, counter in consumption.counters.items():
            key = (consumption.counterSet, name)
            total[key] = total.get(key, 0) + parse_quantity(plain(counter).get("value", ""))
    return total


def untolerated(device: Device, tolerations: Sequence[DeviceToleration]) -> Iterator[DeviceTaint]:
    """Yield the taints of a device that keep a request away from it (KEP-5055)."""
    for taint in device.taints or ():
        # Other effects, None among them, do not prevent allocation.
        if taint.effect in ("NoSchedule", "NoExecute") and not any(
            _tolerates(toleration, taint) for toleration in tolerations
        ):
            yield taint


def _tolerates(toleration: DeviceToleration, taint: DeviceTaint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    operator = toleration.operator or "Equal"
    if operator == "Exists":
        return True
    return operator == "Equal" and (toleration.value or "") == (taint.value or "")
