"""Shows resource claims as the pod resources API has them (KEP-3695)."""

from __future__ import annotations

from collections.abc import Iterable

from kubelet_trio.managers.claims import Claim
from kubelet_trio.managers.podresources.types import ClaimDevice, ClaimUse


def claim_uses(claims: Iterable[Claim]) -> tuple[ClaimUse, ...]:
    """Return claims with all of their devices, of whichever request (GetDynamicResources)."""
    return tuple(
        ClaimUse(
            claim.ref.name,
            claim.ref.namespace,
            tuple(
                ClaimDevice(driver, d.pool, d.device, d.cdi_ids, d.share_id or None)
                for driver, devices in sorted(claim.drivers.items())
                for d in devices
            ),
        )
        for claim in claims
    )
