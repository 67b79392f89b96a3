"""The claims that this node has allocated, as one immutable value, and their file.

The file is written before an allocation is used. It has the whole claim, so that it does not depend
on documents that change or go.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

import msgspec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.models.resource_v1 import (
    AllocationResult,
    ResourceClaim,
    ResourceClaimConsumerReference,
    ResourceClaimStatus,
)

from kubelet_trio.managers.claims.allocation import DeviceId, held_devices
from kubelet_trio.managers.claims.types import ClaimKey
from kubelet_trio.model import (
    JSON_ERRORS,
    PodUid,
    StateForm,
    StateVersionError,
    read_regular,
    sync_directory,
    write_aside,
)

CLAIMS_FILE = "resource_claims.json"  # below the root directory
_MOST_BYTES = 64 << 20

# Never changed in place.
LocalTable = Mapping[ClaimKey, ResourceClaim]
NOTHING: LocalTable = MappingProxyType({})


class _Content(msgspec.Struct):
    claims: list[ResourceClaim]


_FORM = StateForm(
    "the devices of resource claims",
    _Content,
    version=1,
    without="devices of pods that still run may be given to others: end those pods first",
)


def load_local_claims(root_dir: Path) -> LocalTable:
    """Return what an earlier agent has allocated. Blocks.

    Raises:
        ValueError: the file does not parse, or is of a newer agent; the text names it.
        OSError: it cannot be read.
    """
    path = root_dir / CLAIMS_FILE
    try:
        content = read_regular(path, _MOST_BYTES)
    except FileNotFoundError:
        return NOTHING
    try:
        found = _FORM.decode(content, path).claims
    except StateVersionError:
        raise
    except JSON_ERRORS as exc:
        raise ValueError(
            f"{path} does not parse: {exc}: end the pods with claims and remove it"
        ) from exc
    return {key_of(claim): claim for claim in found}


def encode_local_claims(table: LocalTable) -> bytes:
    """Return the content of the file."""
    return _FORM.encode(_Content([table[key] for key in sorted(table)]))


def save_local_claims(root_dir: Path, table: LocalTable) -> None:
    """Write the file; it survives a power cut. Blocks; raises OSError."""
    root_dir.mkdir(mode=0o750, parents=True, exist_ok=True)
    write_aside(root_dir / CLAIMS_FILE, encode_local_claims(table), sync=True)
    sync_directory(root_dir)


def key_of(claim: ResourceClaim) -> ClaimKey:
    """Return the name of a claim."""
    meta = claim.metadata or ObjectMeta()
    return ClaimKey(meta.namespace or "default", meta.name or "")


def users(claim: ResourceClaim) -> list[ResourceClaimConsumerReference]:
    """Return the pods that a claim is reserved for."""
    return list((claim.status.reservedFor if claim.status is not None else None) or ())


def allocated(claim: ResourceClaim, uid: str, allocation: AllocationResult) -> ResourceClaim:
    """Return a claim with its allocation, and a UID."""
    meta = msgspec.structs.replace(claim.metadata or ObjectMeta(), uid=uid)
    return msgspec.structs.replace(
        claim, metadata=meta, status=ResourceClaimStatus(allocation=allocation)
    )


def reserved(claim: ResourceClaim, pods: Iterable[ResourceClaimConsumerReference]) -> ResourceClaim:
    """Return a claim reserved for pods."""
    status = claim.status or ResourceClaimStatus()
    return msgspec.structs.replace(
        claim, status=msgspec.structs.replace(status, reservedFor=list(pods) or None)
    )


def without_users(
    table: LocalTable, known: Collection[PodUid], prepared: Collection[ClaimKey]
) -> LocalTable:
    """Return the claims that are still in use.

    Args:
        table: the claims.
        known: the pods that are to start, or have not ended.
        prepared: claims that a driver may have prepared: they stay until it has undone that.
    """
    left: dict[ClaimKey, ResourceClaim] = {}
    for key, claim in table.items():
        before = users(claim)
        after = [pod for pod in before if pod.uid in known]
        if after or key in prepared:
            left[key] = reserved(claim, after) if after and after != before else claim
    return left


def in_use(table: LocalTable) -> dict[DeviceId, str]:
    """Return the devices that claims hold, and by which."""
    return {
        device: f"{key.namespace}/{key.name}"
        for key, claim in table.items()
        for device in held_devices(claim)
    }
