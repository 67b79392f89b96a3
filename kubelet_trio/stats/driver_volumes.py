"""Asks CSI drivers for usage and condition of their volumes (NodeGetVolumeStats).

Each volume has a task of its own while its driver is asked, and at most one. A driver that does not
answer therefore delays neither other volumes of the pod nor other drivers; its volumes keep their
last values. The driver's numbers are untrusted: negative ones are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import trio
from msgspec import structs

from kubelet_trio.model import PodUid, WallClock, get_logger
from kubelet_trio.stats.usage import Filesystem

log = get_logger()

_AT_A_TIME = 4  # calls of one driver
_LIMIT = 120.0  # seconds for one call: csiTimeout in pkg/volume/csi


@dataclass(frozen=True, slots=True)
class DriverVolume:
    """A volume of a pod that its driver measures."""

    uid: PodUid
    name: str  # in the pod
    driver: str
    handle: str
    path: str  # where it is published


class DriverStatsError(Exception):
    """A driver could not be asked, or answered with an error."""


class DriverStats(Protocol):
    """The CSI drivers of the node, as far as they measure volumes."""

    @property
    def measuring(self) -> frozenset[str]:
        """The names of the registered drivers that measure volumes (GET_VOLUME_STATS)."""
        ...

    async def volume_stats(self, driver: str, handle: str, path: str) -> Filesystem:
        """Ask a driver for the use and the condition of a published volume; `time` is not set.

        Raises `DriverStatsError`.
        """
        ...


class NoDriverStats:
    """The `DriverStats` of a node without CSI drivers."""

    measuring: frozenset[str] = frozenset()

    async def volume_stats(self, driver: str, handle: str, path: str) -> Filesystem:
        raise DriverStatsError(f"driver {driver} is not registered")


@dataclass(slots=True)
class DriverReadings:
    """The last readings, and the volumes whose drivers are being asked."""

    drivers: DriverStats
    clock: WallClock
    on_abnormal: Callable[[DriverVolume, str], None] = lambda _volume, _message: None
    on_measured: Callable[[str, float], None] = lambda _driver, _seconds: None
    _last: dict[tuple[PodUid, str], Filesystem] = field(default_factory=dict)
    _asked: set[tuple[PodUid, str]] = field(default_factory=set)
    _turns: dict[str, trio.Semaphore] = field(default_factory=dict)

    def ask(self, volumes: Iterable[DriverVolume], tasks: trio.Nursery) -> list[trio.Event]:
        """Ask for each volume in a task; return an event for each, set when it has an answer.

        A volume whose driver still owes the last answer is not asked again.
        """
        answered = []
        for volume in volumes:
            key = volume.uid, volume.name
            if key in self._asked:
                continue
            self._asked.add(key)
            done = trio.Event()
            tasks.start_soon(self._ask, volume, done, name=f"volume {volume.name} of {volume.uid}")
            answered.append(done)
        return answered

    def of_pod(self, uid: PodUid) -> Mapping[str, Filesystem]:
        """Return the last readings of a pod's volumes, by name."""
        return {name: fs for (pod, name), fs in self._last.items() if pod == uid}

    def keep(self, volumes: Mapping[PodUid, frozenset[str]]) -> None:
        """Forget the readings of all volumes but these."""
        self._last = {
            (uid, name): fs
            for (uid, name), fs in self._last.items()
            if name in volumes.get(uid, frozenset())
        }

    async def _ask(self, volume: DriverVolume, done: trio.Event) -> None:
        turns = self._turns.setdefault(volume.driver, trio.Semaphore(_AT_A_TIME))
        try:
            with trio.move_on_after(_LIMIT) as waiting:
                async with turns:
                    began = trio.current_time()
                    fs = await self.drivers.volume_stats(volume.driver, volume.handle, volume.path)
                self.on_measured(volume.driver, trio.current_time() - began)
                self._take(volume, fs)
            if waiting.cancelled_caught:
                log.warning("stats.driver_hangs", driver=volume.driver, handle=volume.handle)
        except DriverStatsError as exc:
            log.warning(
                "stats.driver_failed",
                driver=volume.driver,
                handle=volume.handle,
                error=str(exc),
            )
        finally:
            self._asked.discard((volume.uid, volume.name))
            done.set()

    def _take(self, volume: DriverVolume, fs: Filesystem) -> None:
        self._last[volume.uid, volume.name] = structs.replace(fs, time=self.clock.time())
        if fs.abnormal:
            self.on_abnormal(volume, fs.message)
