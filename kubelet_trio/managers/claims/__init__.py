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
    from kubelet_trio.managers.claims.allocation import NodeFacts
    from kubelet_trio.managers.claims.checkpoint import (
        decode_claims,
        encode_claims,
        load_claims,
    )
    from kubelet_trio.managers.claims.drivers import DraDrivers
    from kubelet_trio.managers.claims.local import (
        LocalClaims,
        OfferedSlices,
        SliceReader,
        claim_documents,
        load_local_claims,
        with_claim_statuses,
    )
    from kubelet_trio.managers.claims.manager import ResourceClaims
    from kubelet_trio.managers.claims.slices import (
        ApiSlices,
        NodeSlices,
        SliceCleaner,
        SliceRemovalError,
    )
    from kubelet_trio.managers.claims.usage import allocated_devices, asked_by, devices_for

# Loaded when they are first used.
_DEFERRED = {
    "ApiSlices": "slices",
    "LocalClaims": "local",
    "NodeFacts": "allocation",
    "OfferedSlices": "local",
    "DraDrivers": "drivers",
    "NodeSlices": "slices",
    "ResourceClaims": "manager",
    "SliceCleaner": "slices",
    "SliceRemovalError": "slices",
    "SliceReader": "local",
    "allocated_devices": "usage",
    "asked_by": "usage",
    "decode_claims": "checkpoint",
    "encode_claims": "checkpoint",
    "claim_documents": "local",
    "devices_for": "usage",
    "load_claims": "checkpoint",
    "load_local_claims": "local",
    "with_claim_statuses": "local",
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
    "LocalClaims",
    "NodeFacts",
    "NodeSlices",
    "OfferedSlices",
    "ResourceClaims",
    "SliceCleaner",
    "SliceReader",
    "SliceRemovalError",
    "allocated_devices",
    "asked_by",
    "claim_documents",
    "decode_claims",
    "devices_for",
    "encode_claims",
    "load_claims",
    "load_local_claims",
    "with_claim_statuses",
]

__getattr__ = names_on_demand(__name__, _DEFERRED)
