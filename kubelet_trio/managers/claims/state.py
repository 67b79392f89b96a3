"""The claims of this node as one immutable value, and its changes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

from kubelet_trio.managers.claims.types import Claim, ClaimDevice, ClaimKey
from kubelet_trio.model import PodUid

# Never changed in place.
ClaimTable = Mapping[ClaimKey, Claim]

NO_CLAIMS: ClaimTable = MappingProxyType({})


def with_claims(table: ClaimTable, claims: Iterable[Claim]) -> ClaimTable:
    """Return the table with these claims in place of those of the same names."""
    return {**table, **{claim.ref.key: claim for claim in claims}}


def without_claims(table: ClaimTable, keys: Collection[ClaimKey]) -> ClaimTable:
    """Return the table without claims of these names."""
    return {key: claim for key, claim in table.items() if key not in keys}


def claims_of(table: ClaimTable, uid: PodUid) -> tuple[Claim, ...]:
    """Return the claims that a pod has not given back."""
    return tuple(claim for claim in table.values() if uid in claim.pods)


def used_by(claim: Claim, uid: PodUid) -> Claim:
    """Return the claim with a pod that uses it."""
    return replace(claim, pods=claim.pods | {uid})


def left_by(claim: Claim, uid: PodUid) -> Claim:
    """Return the claim without a pod."""
    return replace(claim, pods=claim.pods - {uid})


def with_devices(
    claim: Claim, prepared: Mapping[str, tuple[ClaimDevice, ...]], *, is_prepared: bool
) -> Claim:
    """Return the claim with the devices that drivers have prepared, by driver."""
    return replace(claim, drivers={**claim.drivers, **prepared}, is_prepared=is_prepared)


def in_use(table: ClaimTable) -> dict[str, int]:
    """Return how many prepared claims each driver has, and all of them as `<any>`.

    A claim with devices of several drivers counts for each of them.
    """
    counts = {"<any>": 0}
    for claim in table.values():
        if claim.is_prepared:
            for driver in ("<any>", *claim.drivers):
                counts[driver] = counts.get(driver, 0) + 1
    return counts
