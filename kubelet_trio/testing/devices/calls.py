"""Devices, and the calls of a device plugin, as plain values: for the rules and for any transport.

Source of the fields: the device plugin API v1beta1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

OPTIONS = "GetDevicePluginOptions"
WATCH = "ListAndWatch"
PREFER = "GetPreferredAllocation"
ALLOCATE = "Allocate"
PRE_START = "PreStartContainer"

VERSION = "v1beta1"
PLUGIN_TYPE = "DevicePlugin"  # of the plugins_registry
HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"


@dataclass(frozen=True, slots=True)
class FakeDevice:
    """One device that a plugin lists.

    Attributes:
        id: its ID.
        is_healthy: whether the kubelet may give it to a container.
        nodes: the NUMA nodes that it is near to; empty: the plugin does not say.
    """

    id: str
    is_healthy: bool = True
    nodes: tuple[int, ...] = ()

    @property
    def health(self) -> str:
        return HEALTHY if self.is_healthy else UNHEALTHY


@dataclass(frozen=True, slots=True)
class AskedDevices:
    """What a call asks for one container; fields that the call does not have stay empty."""

    ids: tuple[str, ...] = ()
    available: tuple[str, ...] = ()
    must_include: tuple[str, ...] = ()
    size: int = 0


@dataclass(frozen=True, slots=True)
class DeviceCall:
    """One call that reached a plugin."""

    method: str
    containers: tuple[AskedDevices, ...] = ()

    def __str__(self) -> str:
        return f"{self.method}({', '.join(map(str, self.containers))})"

    @property
    def ids(self) -> tuple[str, ...]:
        """The devices of all containers of the call, in its order."""
        return tuple(device for asked in self.containers for device in asked.ids)


@dataclass(frozen=True, slots=True)
class GrantedMount:
    """A host's path that a container gets with a device."""

    container_path: str
    host_path: str
    is_read_only: bool = False


@dataclass(frozen=True, slots=True)
class GrantedNode:
    """A device node that a container gets; `permissions` are letters of "rwm"."""

    container_path: str
    host_path: str
    permissions: str = "rw"


@dataclass(frozen=True, slots=True)
class DeviceGrant:
    """What a container gets with its devices: a plugin's answer to Allocate."""

    environment: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[GrantedMount, ...] = ()
    nodes: tuple[GrantedNode, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    cdi_devices: tuple[str, ...] = ()  # vendor/class=name


def device_call(method: str, request: Any) -> DeviceCall:
    """Read a request of any protobuf library."""
    if method in (OPTIONS, WATCH):
        return DeviceCall(method)
    if method == PRE_START:
        return DeviceCall(method, (AskedDevices(tuple(request.devices_ids)),))
    return DeviceCall(method, tuple(_asked(method, asked) for asked in request.container_requests))


def fake_devices(devices: Iterable[FakeDevice | str]) -> tuple[FakeDevice, ...]:
    """Return devices, healthy ones for plain IDs."""
    return tuple(FakeDevice(d) if isinstance(d, str) else d for d in devices)


def _asked(method: str, asked: Any) -> AskedDevices:
    if method == ALLOCATE:
        return AskedDevices(tuple(asked.devices_ids))
    available, included = asked.available_deviceIDs, asked.must_include_deviceIDs
    return AskedDevices((), tuple(available), tuple(included), asked.allocation_size)
