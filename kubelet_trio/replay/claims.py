"""Resource claims in a replay: their objects, drivers and slices are those that were recorded.

A node without an API server allocates devices itself: that is decided again, and compared.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import trio

from kubelet_trio.managers import (
    Claim,
    ClaimDevice,
    ClaimDriver,
    ClaimDrivers,
    ClaimError,
    ClaimKey,
    ClaimRef,
    ClaimSource,
    DeviceHealths,
    ManagerStateError,
    OfferedSlices,
    allocated_devices,
    load_claims,
)
from kubelet_trio.recorder import Entry, Kind, RecordingError, by_name, names_of, read_body
from kubelet_trio.replay.asked import AskFailedError, Asks
from kubelet_trio.replay.journal import Journal
from kubelet_trio.replay.plugin_checks import CLAIMS_FILE, LOCAL_FILE, DriverOffer, Slices
from kubelet_trio.replay.recorded import Life

if TYPE_CHECKING:
    from lightkube.models.resource_v1 import ResourceClaim

_UNKNOWN = ("Unknown", "")
Health = tuple[str, str]  # status and message
OnHealth = Callable[[str, str, str], None]


@dataclass(slots=True, eq=False)
class _Driver:
    """What was recorded of a driver, by time: None is a driver that is not registered."""

    times: list[float] = field(default_factory=list)
    connected: list[bool | None] = field(default_factory=list)
    healths: dict[str, list[tuple[float, Health]]] = field(default_factory=dict)


class ReplayClaims:
    """Implements `agent.ClaimInputs` for one recorded life, whose entries have passed `checks`."""

    def __init__(self, life: Life, asks: Asks, journal: Journal) -> None:
        self._life = life
        self._asks = asks
        self._journal = journal
        self._drivers: dict[str, _Driver] = {}
        self._on_health: OnHealth | None = None
        for entry in (*life.snapshot, *life.news):
            if entry.kind is Kind.PLUGIN and entry.key.startswith("driver/"):
                self._take(entry)

    def _take(self, entry: Entry) -> None:
        name = entry.key.split("/")[1]
        driver = self._drivers.setdefault(name, _Driver())
        if not entry.body:
            driver.times.append(entry.at)
            driver.connected.append(None)
            return
        offer = msgspec.convert(read_body(entry.body), DriverOffer)
        if offer.connected is not None:
            driver.times.append(entry.at)
            driver.connected.append(offer.connected)
        for device, health in (offer.devices or {}).items():
            shown = (entry.at, (health.health, health.message))
            driver.healths.setdefault(device, []).append(shown)

    def load(self, root_dir: Path) -> Mapping[ClaimKey, Claim]:
        """Return the claims that the agent has found; put its files there. Blocks.

        Raises `RecordingError`.
        """
        root_dir.mkdir(parents=True, exist_ok=True)
        files = self._files()
        (root_dir / CLAIMS_FILE).unlink(missing_ok=True)
        for name, body in files.items():
            (root_dir / name).write_bytes(body)
        try:
            return load_claims(root_dir)
        except (ManagerStateError, OSError) as exc:
            raise RecordingError(f"CHECKPOINT {CLAIMS_FILE}: {exc}") from exc

    def _files(self) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        has_left = bool(self._life.facts.get("claims_left"))
        for entries, is_found in ((self._life.snapshot, True), (self._life.news, has_left)):
            for entry in entries:
                is_ours = entry.key == LOCAL_FILE or (entry.key == CLAIMS_FILE and is_found)
                if entry.kind is Kind.CHECKPOINT and is_ours:
                    found.setdefault(entry.key, entry.body)
        return found

    async def run(self) -> None:
        """Tell the health of devices when it changes, and which drivers come and go."""
        async with trio.open_nursery() as nursery:
            for name, driver in self._drivers.items():
                nursery.start_soon(self._tell_health, name, driver)
                nursery.start_soon(self._tell_connection, name, driver)

    async def _tell_health(self, name: str, driver: _Driver) -> None:
        news = ((at, each) for each, told in driver.healths.items() for at, _ in told)
        for at, device in sorted(news):
            await trio.sleep_until(at)
            pool, _, device_name = device.rpartition("/")
            if self._on_health is not None:
                self._on_health(name, pool, device_name)

    async def _tell_connection(self, name: str, driver: _Driver) -> None:
        for at, connected in zip(driver.times, driver.connected, strict=True):
            await trio.sleep_until(at)
            words = {None: "is gone", True: "is there", False: "is not connected"}
            self._journal.note("", "node", f"the driver {name} {words[connected]}")

    # ClaimInputs

    @property
    def slices(self) -> _ReplayedSlices:
        """The slices that were in files."""
        return _ReplayedSlices(self._life)

    def source(self, source: ClaimSource) -> ClaimSource:
        """Return where claims are."""
        if self._life.facts.get("claims") == "api":
            return _ReplayedClaims(self._asks)
        return _ComparedClaims(source, self._asks)

    def drivers(self, on_health: OnHealth) -> tuple[ClaimDrivers, DeviceHealths]:
        """Return the drivers, and the health of their devices."""
        self._on_health = on_health
        return self, self

    def find(self, driver: str) -> ClaimDriver:
        """Return a driver. Raises `ClaimError` if it is not registered now."""
        found = self._drivers.get(driver, _Driver())
        index = bisect_right(found.times, trio.current_time()) - 1
        if index < 0 or found.connected[index] is None:
            raise ClaimError(f"DRA driver {driver} is not registered")
        return _ReplayedDriver(driver, self._asks)

    def health(self, driver: str, pool: str, device: str) -> Health:
        """Return what a driver said of a device last."""
        told = self._drivers.get(driver, _Driver()).healths.get(f"{pool}/{device}", ())
        now = trio.current_time()
        return next((health for at, health in reversed(told) if at <= now), _UNKNOWN)


class _ReplayedClaims:
    """The claims of an API server."""

    def __init__(self, asks: Asks) -> None:
        self._asks = asks

    async def get(self, key: ClaimKey) -> ResourceClaim:
        """Return a claim as it was. Raises `ClaimError`."""
        try:
            found = await self._asks.ask(_question(key), {})
        except AskFailedError as exc:
            raise ClaimError(str(exc)) from exc
        return _claim(found)


class _ComparedClaims:
    """Claims that the node allocates itself, compared with those that it has allocated."""

    def __init__(self, source: ClaimSource, asks: Asks) -> None:
        self._source = source
        self._asks = asks

    async def get(self, key: ClaimKey) -> ResourceClaim:
        """Return a claim with its allocation. Raises `ClaimError`."""
        try:
            claim = await self._source.get(key)
        except ClaimError as exc:
            self._asks.decide(_question(key), f"no devices for {key.name}: {exc}", None, _words)
            raise
        self._asks.decide(_question(key), _words(claim), claim, _words)
        return claim


def _question(key: ClaimKey) -> str:
    return f"ResourceClaim/{key.namespace}/{key.name}"


def _claim(found: Any) -> ResourceClaim:
    from lightkube.models.resource_v1 import ResourceClaim  # many types: with the first claim

    return msgspec.convert(found, ResourceClaim, strict=False)


def _words(claim: Any) -> str:
    found = claim if not isinstance(claim, dict) else _claim(claim)
    name = found.metadata.name if found.metadata is not None else ""
    return f"allocate {', '.join(allocated_devices(found))} to {name}"


class _ReplayedDriver:
    """A `ClaimDriver` on what was recorded."""

    def __init__(self, name: str, asks: Asks) -> None:
        self._name = name
        self._asks = asks

    async def prepare(
        self, claims: Sequence[ClaimRef]
    ) -> Mapping[str, tuple[ClaimDevice, ...] | str]:
        """Return what the driver has prepared. Raises `ClaimError`."""
        found = await self._ask("NodePrepareResources", claims)
        return {uid: _prepared(each) for uid, each in _by_uid(found, claims)}

    async def unprepare(self, claims: Sequence[ClaimRef]) -> Mapping[str, str]:
        """Return what the driver said. Raises `ClaimError`."""
        return dict(_by_uid(await self._ask("NodeUnprepareResources", claims), claims))

    async def _ask(self, method: str, claims: Sequence[ClaimRef]) -> Mapping[str, Any]:
        try:
            found = await self._asks.ask(f"{method}/{self._name}", {"claims": names_of(claims)})
        except AskFailedError as exc:
            raise ClaimError(str(exc)) from exc
        answers: Mapping[str, Any] = found or {}
        return answers


def _by_uid(found: Mapping[str, Any], claims: Sequence[ClaimRef]) -> Iterator[tuple[str, Any]]:
    uids = by_name({claim.uid: claim.uid for claim in claims}, claims)
    for name, each in found.items():
        yield uids.get(name, name), each


def _prepared(found: Mapping[str, Any]) -> tuple[ClaimDevice, ...] | str:
    if "error" in found:
        return str(found["error"])
    return tuple(msgspec.convert(each, ClaimDevice) for each in found.get("devices") or ())


class _ReplayedSlices:
    """A `SliceReader` on what was recorded."""

    def __init__(self, life: Life) -> None:
        self._readings = life.readings.get(("resource_slices", ""), [])

    async def read(self) -> OfferedSlices:
        """Return the slices of now."""
        await trio.lowlevel.checkpoint()
        index = bisect_right(self._readings, trio.current_time(), key=lambda r: r.at) - 1
        if not self._readings:
            return OfferedSlices()
        told = msgspec.convert(self._readings[max(index, 0)].ok, Slices)
        from lightkube.models.resource_v1 import ResourceSlice

        slices = tuple(msgspec.convert(each, ResourceSlice, strict=False) for each in told.slices)
        return OfferedSlices(slices, tuple(told.problems))
