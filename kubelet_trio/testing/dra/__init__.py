"""A fake DRA driver that keeps the rules, with faults, for tests of kubelets."""

from kubelet_trio.testing.dra import calls
from kubelet_trio.testing.dra.calls import (
    AskedClaim,
    DraCall,
    FakeClaimDevice,
    FakeDeviceHealth,
    dra_call,
)
from kubelet_trio.testing.dra.cdi import CdiEdits, remove_cdi_spec, write_cdi_spec
from kubelet_trio.testing.dra.driver import FakeDraDriver, resource_slice
from kubelet_trio.testing.dra.faults import DraFault, DraFaultKind, DraFaults
from kubelet_trio.testing.dra.rules import DraRule, DraRules, DraViolation

__all__ = [
    "AskedClaim",
    "CdiEdits",
    "DraCall",
    "DraFault",
    "DraFaultKind",
    "DraFaults",
    "DraRule",
    "DraRules",
    "DraViolation",
    "FakeClaimDevice",
    "FakeDeviceHealth",
    "FakeDraDriver",
    "calls",
    "dra_call",
    "remove_cdi_spec",
    "resource_slice",
    "write_cdi_spec",
]
