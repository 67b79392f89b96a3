"""Asks CSI drivers from time to time how many volumes the node can have.

A driver's limit depends on what else the node has attached, such as network interfaces. Its
CSIDriver says how often to ask (`nodeAllocatableUpdatePeriodSeconds`, KEP-4876); `CsiNodeObject`
writes the answer. Source: pkg/volume/csi/csi_node_updater.go.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import trio
from lightkube.models.storage_v1 import CSIDriver
from trio_util import AsyncValue

from kubelet_trio.kube import KubeApi, Reflector, ServerFeatures
from kubelet_trio.model import Bell
from kubelet_trio.node.csi_node import D

Refresh = Callable[[str], Awaitable[None]]


class CsiLimits:
    """Asks the registered drivers. One task runs it."""

    def __init__(self, api: KubeApi, features: ServerFeatures) -> None:
        self._api = api
        self._features = features
        # The drivers that are asked, each with its period in seconds and the scope of its task.
        self._asked: dict[str, tuple[float, trio.CancelScope]] = {}

    async def run(
        self,
        drivers: AsyncValue[Mapping[str, D]],
        refresh: Refresh,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Ask until cancelled. CSIDrivers are watched once a driver has registered.

        Args:
            drivers: the registered drivers by name.
            refresh: asks one driver; it logs a failure, and raises none.
            task_status: started at once.
        """
        task_status.started()
        await drivers.wait_value(lambda found: bool(found))
        objects = Reflector(self._api, CSIDriver, features=self._features)
        bell = Bell()

        self._asked.clear()  # those of an earlier life
        async with trio.open_nursery() as nursery:
            await nursery.start(objects.run)
            nursery.start_soon(_ring_at_each, objects.wait_delivery, bell)
            nursery.start_soon(_ring_at_each, drivers.wait_transition, bell)
            while True:
                found = {name: objects.objects.get(("", name)) for name in drivers.value}
                self._ask(nursery, {name: _period(one) for name, one in found.items()}, refresh)
                await bell.wait_ring()

    def _ask(self, nursery: trio.Nursery, periods: Mapping[str, float], refresh: Refresh) -> None:
        """Ask each driver in its period, and no longer those without one."""
        for name, (period, scope) in list(self._asked.items()):
            if periods.get(name) != period:
                scope.cancel()
                del self._asked[name]
        for name, period in periods.items():
            if period and name not in self._asked:
                scope = trio.CancelScope()
                self._asked[name] = period, scope
                nursery.start_soon(_ask_one, name, period, scope, refresh)


async def _ring_at_each(wait_change: Callable[[], Awaitable[object]], bell: Bell) -> None:
    while True:
        await wait_change()
        bell.ring()


async def _ask_one(name: str, period: float, scope: trio.CancelScope, refresh: Refresh) -> None:
    with scope:
        while True:
            await trio.sleep(period)
            await refresh(name)


def _period(driver: CSIDriver | None) -> float:
    """Return the seconds between two questions; 0: the driver is not asked."""
    return (driver.spec.nodeAllocatableUpdatePeriodSeconds or 0) if driver is not None else 0
