"""Adds the devices that pods have claimed to what is shown of the machine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from kubelet_trio.managers.topology.holdings import (
    ContainerHoldings,
    MachineDevice,
    MachineHoldings,
)


@dataclass(frozen=True, slots=True)
class ClaimedDevice:
    """A device of a claim: its driver, `pool/device`, and whether it is healthy."""

    driver: str
    id: str
    healthy: bool = True


# Namespace, pod and container.
ContainerName = tuple[str, str, str]


def with_claims(
    holdings: MachineHoldings, claimed: Mapping[ContainerName, Iterable[ClaimedDevice]]
) -> MachineHoldings:
    """Return the holdings with claimed devices, as devices of their driver.

    Which NUMA node they are near to is not known: claims do not say.
    """
    known = {(c.namespace, c.pod, c.container): c for c in holdings.containers}
    devices: dict[tuple[str, str], MachineDevice] = {}
    for name, held in claimed.items():
        found: dict[str, list[str]] = {}
        for device in held:
            found.setdefault(device.driver, []).append(device.id)
            devices[device.driver, device.id] = MachineDevice(
                device.driver, device.id, None, device.healthy
            )
        if found:
            before = known.get(name, ContainerHoldings(*name))
            own = {driver: tuple(ids) for driver, ids in sorted(found.items())}
            known[name] = replace(before, devices={**before.devices, **own})
    every = (*holdings.devices, *(device for _, device in sorted(devices.items())))
    return replace(holdings, containers=tuple(known.values()), devices=every)
