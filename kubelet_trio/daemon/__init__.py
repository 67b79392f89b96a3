"""The node daemon: an `Agent` on this machine, built from the configuration.

Here `KubeletConfiguration` and flags become plain values for the rooms, and every seam gets its
real implementation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kubelet_trio._deferred import names_on_demand
from kubelet_trio.daemon.build import build_agent
from kubelet_trio.daemon.machine import machine_children
from kubelet_trio.daemon.run import run_agent
from kubelet_trio.daemon.settings import node_api_settings

if TYPE_CHECKING:
    from kubelet_trio.daemon.join import Apis, open_apis

# Imported on first use: a standalone node needs none of these.
_DEFERRED = {"Apis": "join", "open_apis": "join"}

__all__ = [
    "Apis",
    "build_agent",
    "machine_children",
    "node_api_settings",
    "open_apis",
    "run_agent",
]

__getattr__ = names_on_demand(__name__, _DEFERRED)
