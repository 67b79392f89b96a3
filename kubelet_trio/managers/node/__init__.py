"""The node's holdings: which pod has which CPUs, memory and devices, on disk and in cgroups.

`ResourceManagers` owns the states of all managers; `DeviceManagers` is one with device plugins.
`CheckpointKeeper` writes the states to disk, `CpusetReconciler` keeps the CPU sets of running
containers as they say.
"""

from typing import TYPE_CHECKING

from kubelet_trio._deferred import names_on_demand
from kubelet_trio.managers.node.checkpoints import CheckpointKeeper
from kubelet_trio.managers.node.devices import DeviceManagers
from kubelet_trio.managers.node.holdings import LoadedManagers, Provider, ResourceManagers
from kubelet_trio.managers.node.reconcile import CpusetReconciler

if TYPE_CHECKING:
    from kubelet_trio.managers.node.view import machine_holdings

__all__ = [
    "CheckpointKeeper",
    "CpusetReconciler",
    "DeviceManagers",
    "LoadedManagers",
    "Provider",
    "ResourceManagers",
    "machine_holdings",
]

__getattr__ = names_on_demand(__name__, {"machine_holdings": "view"})  # few ask
