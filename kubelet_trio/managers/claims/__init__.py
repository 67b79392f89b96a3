"""Resource claims: devices that are claimed by name, and prepared by their drivers (DRA).

The seams to drivers and to the claims' objects are here; what keeps claims is loaded with the first
pod that has some. Sources: KEP-4381 and pkg/kubelet/cm/dra.
"""

from typing import TYPE_CHECKING

from kubelet_trio._deferred import names_on_demand
from kubelet_trio.managers.claims.types import (
    Claim,
    ClaimDevice,
    ClaimDriver,
    ClaimDrivers,
    ClaimError,
    ClaimKey,
    ClaimRef,
    ClaimSource,
    DeviceHealths,
)

if TYPE_CHECKING:
    from kubelet_trio.managers.claims.checkpoint import load_claims
    from kubelet_trio.managers.claims.manager import ResourceClaims
    from kubelet_trio.managers.claims.usage import asked_by, devices_for, uses_claims

_DEFERRED = {
    "ResourceClaims": "manager",
    "asked_by": "usage",
    "devices_for": "usage",
    "load_claims": "checkpoint",
    "uses_claims": "usage",
}

__all__ = [
    "Claim",
    "ClaimDevice",
    "ClaimDriver",
    "ClaimDrivers",
    "ClaimError",
    "ClaimKey",
    "ClaimRef",
    "ClaimSource",
    "DeviceHealths",
    "ResourceClaims",
    "asked_by",
    "devices_for",
    "load_claims",
    "uses_claims",
]

__getattr__ = names_on_demand(__name__, _DEFERRED)
