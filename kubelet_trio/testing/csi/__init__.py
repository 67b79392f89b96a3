"""A CSI driver for tests: the specification's rules, a driver that keeps them, faults."""

from kubelet_trio.testing.csi import calls
from kubelet_trio.testing.csi.calls import AskedCapability, CsiCall, asked_capability, csi_call
from kubelet_trio.testing.csi.driver import CsiDriverFacts, FakeCsiDriver
from kubelet_trio.testing.csi.faults import CsiFault, CsiFaultKind, CsiFaults
from kubelet_trio.testing.csi.rules import (
    CsiRule,
    CsiRules,
    NodeFeature,
    StoredVolume,
)
from kubelet_trio.testing.csi.storage import CsiStorage, FakeStorage, StorageUsage

__all__ = [
    "AskedCapability",
    "CsiCall",
    "CsiDriverFacts",
    "CsiFault",
    "CsiFaultKind",
    "CsiFaults",
    "CsiRule",
    "CsiRules",
    "CsiStorage",
    "FakeCsiDriver",
    "FakeStorage",
    "NodeFeature",
    "StorageUsage",
    "StoredVolume",
    "asked_capability",
    "calls",
    "csi_call",
]
