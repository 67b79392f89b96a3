"""The taps at resource claims: their objects, their drivers, and the slices in files.

Loaded with the first pod that claims something, or with the first driver.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from kubelet_trio.managers import (
    ClaimDevice,
    ClaimDriver,
    ClaimDrivers,
    ClaimError,
    ClaimKey,
    ClaimRef,
    ClaimSource,
    DeviceHealths,
    OfferedSlices,
    SliceReader,
)
from kubelet_trio.recorder.asked import AskNotes
from kubelet_trio.recorder.format import Kind
from kubelet_trio.recorder.masks import mask_object, mask_text
from kubelet_trio.recorder.offers import Offer
from kubelet_trio.recorder.recorder import Recorder

if TYPE_CHECKING:
    from lightkube.models.resource_v1 import ResourceClaim

_ERRORS = (ClaimError,)


class RecordedClaims:
    """A `ClaimSource` that notes the claims that it returns."""

    def __init__(self, source: ClaimSource, asks: AskNotes) -> None:
        self._source = source
        self._asks = asks

    async def get(self, key: ClaimKey) -> ResourceClaim:
        """Return a claim as it is now. Raises `ClaimError`."""
        call, name = self._source.get(key), f"ResourceClaim/{key.namespace}/{key.name}"
        return await self._asks.noted(name, {}, call, _ERRORS, _masked_claim)


def _masked_claim(claim: ResourceClaim) -> Any:
    return mask_object(msgspec.to_builtins(claim), "ResourceClaim")


class RecordedDrivers:
    """`ClaimDrivers` whose calls are noted."""

    def __init__(self, drivers: ClaimDrivers, asks: AskNotes) -> None:
        self._drivers = drivers
        self._asks = asks

    def find(self, driver: str) -> ClaimDriver:
        """Return a driver. Raises `ClaimError` if it is not registered."""
        return _RecordedDriver(self._drivers.find(driver), driver, self._asks)


class _RecordedDriver:
    def __init__(self, driver: ClaimDriver, name: str, asks: AskNotes) -> None:
        self._driver = driver
        self._name = name
        self._asks = asks

    async def prepare(
        self, claims: Sequence[ClaimRef]
    ) -> Mapping[str, tuple[ClaimDevice, ...] | str]:
        """Prepare claims. Raises `ClaimError`."""

        def told(found: Mapping[str, tuple[ClaimDevice, ...] | str]) -> Any:
            return {name: _devices(each) for name, each in by_name(found, claims).items()}

        call = self._driver.prepare(claims)
        key, request = f"NodePrepareResources/{self._name}", {"claims": names_of(claims)}
        return await self._asks.noted(key, request, call, _ERRORS, told)

    async def unprepare(self, claims: Sequence[ClaimRef]) -> Mapping[str, str]:
        """Undo the preparation of claims. Raises `ClaimError`."""

        def told(found: Mapping[str, str]) -> Any:
            return {name: mask_text(error) for name, error in by_name(found, claims).items()}

        call = self._driver.unprepare(claims)
        key, request = f"NodeUnprepareResources/{self._name}", {"claims": names_of(claims)}
        return await self._asks.noted(key, request, call, _ERRORS, told)


def names_of(claims: Sequence[ClaimRef]) -> list[str]:
    """Return the names of claims, sorted: UIDs are random on a node without an API server."""
    return sorted(f"{claim.namespace}/{claim.name}" for claim in claims)


def by_name(found: Mapping[str, Any], claims: Sequence[ClaimRef]) -> dict[str, Any]:
    """Return what a driver has answered by the names of claims; what nobody asked for by UID."""
    names = {claim.uid: f"{claim.namespace}/{claim.name}" for claim in claims}
    return {names.get(uid, uid): each for uid, each in found.items()}


def _devices(found: tuple[ClaimDevice, ...] | str) -> Any:
    if isinstance(found, str):
        return {"error": mask_text(found)}
    return {"devices": [msgspec.to_builtins(device) for device in found]}


class DriverNotes:
    """Notes which drivers are registered and connected, and the health of their devices."""

    def __init__(self, recorder: Recorder) -> None:
        self._note = recorder.note

    def changed(self, driver: str, is_connected: bool | None) -> None:
        """Note a driver's connection; None: it is not registered any more."""
        told = None if is_connected is None else Offer({"connected": is_connected})
        self._note(Kind.PLUGIN, driver_key(driver), told)

    def health(self, healths: DeviceHealths, driver: str, pool: str, device: str) -> None:
        """Note the health of a device."""
        shown = {f"{pool}/{device}": healths.health(driver, pool, device)}
        offer = Offer(listed=shown, is_whole=False, plain=_shown)
        self._note(Kind.PLUGIN, driver_key(driver), offer)


def driver_key(driver: str) -> str:
    """Return the key of a PLUGIN of a driver: all of its instances are one."""
    return f"driver/{driver}/0"


def _shown(health: tuple[str, str]) -> dict[str, str]:
    return {"health": health[0], "message": mask_text(health[1])}


class RecordedSlices:
    """A `SliceReader` that notes what it reads."""

    def __init__(self, slices: SliceReader, recorder: Recorder) -> None:
        self._slices = slices
        self._note = recorder.note

    async def read(self) -> OfferedSlices:
        """Return the slices of the files as they are now."""
        found = await self._slices.read()
        self._note(Kind.READ, "resource_slices:", (found,))
        return found
