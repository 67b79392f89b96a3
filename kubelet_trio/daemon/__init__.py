"""The node daemon: an `Agent` on the real world, made from the configuration.

This is where `KubeletConfiguration` and flags become plain values for the rooms, and where
every seam gets its real side.
"""

from __future__ import annotations

from kubelet_trio.daemon.build import build_agent
from kubelet_trio.daemon.machine import machine_children
from kubelet_trio.daemon.run import run_agent

__all__ = ["build_agent", "machine_children", "run_agent"]
