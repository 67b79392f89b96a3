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
    from kubelet_trio.managers.claims.drivers import DraDrivers
    from kubelet_trio.managers.claims.manager import ResourceClaims
    from kubelet_trio.managers.claims.slices import (
        ApiSlices,
        NodeSlices,
        SliceCleaner,
        SliceRemovalError,
    )
    from kubelet_trio.managers.claims.usage import asked_by, devices_for

# Loaded when they are first used.
_DEFERRED = {
    "ApiSlices": "slices",
    "DraDrivers": "drivers",
    "NodeSlices": "slices",
    "ResourceClaims": "manager",
    "SliceCleaner": "slices",
    "SliceRemovalError": "slices",
    "asked_by": "usage",
    "devices_for": "usage",
    "load_claims": "checkpoint",
}

__all__ = [
    "ApiSlices",
    "Claim",
    "ClaimDevice",
    "ClaimDriver",
    "ClaimDrivers",
    "ClaimError",
    "ClaimKey",
    "ClaimRef",
    "ClaimSource",
    "DeviceHealths",
    "DraDrivers",
    "NodeSlices",
    "ResourceClaims",
    "SliceCleaner",
    "SliceRemovalError",
    "asked_by",
    "devices_for",
    "load_claims",
]

__getattr__ = names_on_demand(__name__, _DEFERRED)
