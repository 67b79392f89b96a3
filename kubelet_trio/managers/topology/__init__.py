"""The machine's topology: read from /sys, drawn for people, and the page that shows both."""

from __future__ import annotations

from kubelet_trio.managers.topology.claims import ClaimedDevice, with_claims
from kubelet_trio.managers.topology.draw import draw_machine
from kubelet_trio.managers.topology.errors import TopologyError
from kubelet_trio.managers.topology.holdings import (
    ContainerHoldings,
    MachineDevice,
    MachineHoldings,
    MemoryHolding,
    read_topology_page,
    topology_page,
)
from kubelet_trio.managers.topology.read import read_machine

__all__ = [
    "ClaimedDevice",
    "ContainerHoldings",
    "MachineDevice",
    "MachineHoldings",
    "MemoryHolding",
    "TopologyError",
    "draw_machine",
    "read_machine",
    "read_topology_page",
    "topology_page",
    "with_claims",
]
