"""Counters that partitions of a device share (KEP-4815): what is left of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from kubelet_trio.managers.claims.allocation.devices import CounterKey, DeviceId, Offered
from kubelet_trio.managers.claims.allocation.pools import Pool


class Counters:
    """What is left of the pools' counters while a search takes devices and gives them back."""

    def __init__(self, pools: Sequence[Pool], in_use: Collection[DeviceId]) -> None:
        self._left: dict[tuple[str, str], dict[CounterKey, int]] = {}
        for pool in pools:
            left = dict(pool.counters)
            for id_, consumption in pool.consumers.items():
                if id_ in in_use:
                    # May become negative, if a driver has published less than is in use.
                    for key, amount in consumption.items():
                        left[key] -= amount
            self._left[pool.driver, pool.name] = left

    def take(self, device: Offered) -> bool:
        """Take what a device consumes; return False, and take nothing, if there is less."""
        left = self._left[device.id.driver, device.id.pool]
        if any(left[key] < amount for key, amount in device.consumes.items()):
            return False
        for key, amount in device.consumes.items():
            left[key] -= amount
        return True

    def give_back(self, device: Offered) -> None:
        """Undo `take`."""
        left = self._left[device.id.driver, device.id.pool]
        for key, amount in device.consumes.items():
            left[key] += amount
