"""Resource claims: devices that are claimed by name, and prepared by their drivers (DRA)."""

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
    from kubelet_trio.managers.claims.drivers import DraDrivers
    from kubelet_trio.managers.claims.slices import (
        ApiSlices,
        NodeSlices,
        SliceCleaner,
        SliceRemovalError,
    )

# Loaded when they are first used.
_DEFERRED = {
    "ApiSlices": "slices",
    "DraDrivers": "drivers",
    "NodeSlices": "slices",
    "SliceCleaner": "slices",
    "SliceRemovalError": "slices",
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
    "SliceCleaner",
    "SliceRemovalError",
]

__getattr__ = names_on_demand(__name__, _DEFERRED)
