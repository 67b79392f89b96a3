"""Fakes of devices: block devices for volumes, and device plugins with faults for the managers."""

from kubelet_trio.testing.devices import calls
from kubelet_trio.testing.devices.block import FakeBlockDevices
from kubelet_trio.testing.devices.calls import (
    AskedDevices,
    DeviceCall,
    DeviceGrant,
    FakeDevice,
    GrantedMount,
    GrantedNode,
    device_call,
)
from kubelet_trio.testing.devices.faults import DeviceFault, DeviceFaultKind, DeviceFaults
from kubelet_trio.testing.devices.plugin import FakeDevicePlugin
from kubelet_trio.testing.devices.rules import DeviceRule, DeviceRules, DeviceViolation

__all__ = [
    "AskedDevices",
    "DeviceCall",
    "DeviceFault",
    "DeviceFaultKind",
    "DeviceFaults",
    "DeviceGrant",
    "DeviceRule",
    "DeviceRules",
    "DeviceViolation",
    "FakeBlockDevices",
    "FakeDevice",
    "FakeDevicePlugin",
    "GrantedMount",
    "GrantedNode",
    "calls",
    "device_call",
]
