"""How full CSI volumes are, as their drivers report it; the `DriverStats` of the room `stats`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from trio_util import AsyncValue

from kubelet_trio.stats import DriverStatsError, Filesystem
from kubelet_trio.volumes.csi.types import Capability, Driver
from kubelet_trio.volumes.errors import CsiCallError, DriverNotFoundError

if TYPE_CHECKING:
    from kubelet_trio.volumes.csi.client import DriverClient
    from kubelet_trio.volumes.csi.generated.csi import v1

_MOST_TEXT = 1024  # characters of a condition's message: as many as an event holds
_MOST_USAGES = 16  # entries of an answer that are looked at; two units exist


class DriverUsage:
    """Asks the registered drivers (metricsCsi in pkg/volume/csi/csi_metrics.go)."""

    def __init__(
        self,
        drivers: AsyncValue[Mapping[str, Driver]],
        client: Callable[[str], DriverClient],
    ) -> None:
        """Take the seams.

        Args:
            drivers: the registered drivers.
            client: returns the calls of a driver; raises `DriverNotFoundError`.
        """
        self._drivers = drivers
        self._client = client

    @property
    def measuring(self) -> frozenset[str]:
        """The registered drivers with GET_VOLUME_STATS."""
        return frozenset(
            name
            for name, driver in self._drivers.value.items()
            if driver.can(Capability.GET_VOLUME_STATS)
        )

    async def volume_stats(self, driver: str, handle: str, path: str) -> Filesystem:
        """Call NodeGetVolumeStats for a published volume.

        Raises `DriverStatsError`: the driver is gone, failed, or reported nothing.
        """
        # Loaded with the first driver, not with the first request for stats.
        from kubelet_trio.volumes.csi.generated.csi import v1

        try:
            client = self._client(driver)
            request = v1.NodeGetVolumeStatsRequest(volume_id=handle, volume_path=path)
            response = await client.volume_stats(request)
        except (DriverNotFoundError, CsiCallError) as exc:
            raise DriverStatsError(str(exc)) from exc
        return reported(response, tells_condition=client.can(Capability.VOLUME_CONDITION))


def reported(response: v1.NodeGetVolumeStatsResponse, *, tells_condition: bool) -> Filesystem:
    """Return the values of an answer; what is negative or missing is None.

    A driver with VOLUME_CONDITION that sends no condition reports a normal one, as in Go.

    Raises `DriverStatsError` if it has neither usage nor condition.
    """
    if not response.usage and not tells_condition:
        raise DriverStatsError("failed to get usage from response. usage is nil")
    from kubelet_trio.volumes.csi.generated.csi import v1

    by_unit = {usage.unit: usage for usage in response.usage[:_MOST_USAGES]}
    size = by_unit.get(v1.VolumeUsageUnit.BYTES)
    inodes = by_unit.get(v1.VolumeUsageUnit.INODES)
    condition = response.volume_condition or v1.VolumeCondition()
    return Filesystem(
        0.0,
        capacity=_count(size, "total"),
        available=_count(size, "available"),
        used=_count(size, "used"),
        inodes=_count(inodes, "total"),
        inodes_free=_count(inodes, "available"),
        inodes_used=_count(inodes, "used"),
        abnormal=condition.abnormal if tells_condition else None,
        message=condition.message[:_MOST_TEXT] if tells_condition else "",
    )


def _count(usage: v1.VolumeUsage | None, field: str) -> int | None:
    value: int = -1 if usage is None else getattr(usage, field)
    return value if value >= 0 else None
