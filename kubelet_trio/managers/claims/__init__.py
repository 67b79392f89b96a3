"""Resource claims: devices that are claimed by name, and prepared by their drivers (DRA)."""

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
]
