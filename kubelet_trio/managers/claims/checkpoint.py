"""The checkpoint `dra_manager_state`, in the Go kubelet's format.

It lists the claims that pods use, with the devices that drivers have named. Whether a claim was
prepared is not in it. Sources: pkg/kubelet/cm/dra/state, Kubernetes 1.34; files since 1.32 are read
as well.
"""

from __future__ import annotations

from pathlib import Path
from zlib import crc32

import msgspec

from kubelet_trio.managers.checksum import go_json
from kubelet_trio.managers.claims.state import ClaimTable
from kubelet_trio.managers.claims.types import Claim, ClaimDevice, ClaimKey, ClaimRef
from kubelet_trio.managers.loading import read_checkpoint
from kubelet_trio.managers.shares import ManagerStateError
from kubelet_trio.model import JSON_ERRORS, PodUid

CHECKPOINT = "dra_manager_state"
_KIND, _VERSION = "DRACheckpoint", "checkpoint.dra.kubelet.k8s.io/v1"


class ClaimCheckpointError(ValueError):
    """A checkpoint that is damaged, or none."""


class _Device(msgspec.Struct):
    """Device; without a ShareID before 1.34."""

    PoolName: str = ""
    DeviceName: str = ""
    ShareID: str | None = None
    RequestNames: list[str] | None = None
    CDIDeviceIDs: list[str] | None = None


class _Driver(msgspec.Struct):
    """DriverState."""

    Devices: list[_Device] | None = None


class _Claim(msgspec.Struct):
    """ClaimInfoState."""

    ClaimUID: str = ""
    ClaimName: str = ""
    Namespace: str = ""
    PodUIDs: dict[str, dict[str, None]] | None = None
    DriverState: dict[str, _Driver] | None = None


class _Data(msgspec.Struct):
    """CheckpointData."""

    kind: str = ""
    apiVersion: str = ""  # noqa: N815  # as in the file
    ClaimInfoStateList: list[_Claim] | None = None


class _File(msgspec.Struct):
    """The document."""

    Data: str
    Checksum: int


def encode_claims(table: ClaimTable) -> bytes:
    """Return the checkpoint of the claims, sorted by name."""
    entries = [_entry(claim) for _, claim in sorted(table.items())]
    data = go_json(_Data(_KIND, _VERSION, entries))
    return go_json(_File(data.decode(), crc32(data)))


def _entry(claim: Claim) -> _Claim:
    drivers = {
        name: _Driver([_device(device) for device in devices] or None)
        for name, devices in sorted(claim.drivers.items())
    }
    users: dict[str, dict[str, None]] = {uid: {} for uid in sorted(claim.pods)}
    return _Claim(claim.ref.uid, claim.ref.name, claim.ref.namespace, users, drivers)


def _device(device: ClaimDevice) -> _Device:
    return _Device(
        device.pool,
        device.device,
        device.share_id or None,
        list(device.requests) or None,
        list(device.cdi_ids) or None,
    )


def decode_claims(data: bytes) -> ClaimTable:
    """Return the claims of a checkpoint, none of them prepared. Raises `ClaimCheckpointError`."""
    try:
        file = msgspec.json.decode(data, type=_File)
        actual = crc32(file.Data.encode())
        if actual != file.Checksum:
            raise ClaimCheckpointError(
                f"checkpoint is corrupted: its checksum is {file.Checksum}, expected {actual}"
            )
        found = msgspec.json.decode(file.Data.encode(), type=_Data)
    except JSON_ERRORS as exc:
        raise ClaimCheckpointError(
            f"not a checkpoint of resource claims of Kubernetes 1.32 or later: {exc}"
        ) from exc
    if (found.kind, found.apiVersion) != (_KIND, _VERSION):
        raise ClaimCheckpointError(
            f"it is {found.kind or 'no kind'} of {found.apiVersion or 'no version'}, and not "
            f"{_KIND} of {_VERSION}"
        )
    claims = (_claim(entry) for entry in found.ClaimInfoStateList or ())
    return {claim.ref.key: claim for claim in claims}


def _claim(entry: _Claim) -> Claim:
    drivers = {
        name: tuple(
            ClaimDevice(
                device.PoolName,
                device.DeviceName,
                tuple(device.RequestNames or ()),
                tuple(device.CDIDeviceIDs or ()),
                device.ShareID or "",
            )
            for device in state.Devices or ()
        )
        for name, state in (entry.DriverState or {}).items()
    }
    ref = ClaimRef(entry.Namespace, entry.ClaimName, entry.ClaimUID)
    return Claim(ref, frozenset(PodUid(uid) for uid in entry.PodUIDs or ()), drivers)


def load_claims(root_dir: Path) -> dict[ClaimKey, Claim] | None:
    """Return the claims that an earlier agent has left; None if there is no checkpoint. Blocks.

    Raises:
        ManagerStateError: it is damaged: as the Go kubelet, the agent does not start, since nobody
            knows which claims are prepared.
        OSError: it cannot be read.
    """
    path = root_dir / CHECKPOINT
    data = read_checkpoint(path)
    if data is None:
        return None
    try:
        return dict(decode_claims(data))
    except ClaimCheckpointError as exc:
        raise ManagerStateError(
            f"could not restore the state of resource claims: {exc}, please drain this node and "
            f'delete the checkpoint file "{path}" before restarting Kubelet'
        ) from exc
