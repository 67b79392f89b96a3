"""Plugins of the node: found by their sockets, asked what they are, and registered.

docs/plugins.md describes what a plugin and its author see.
"""

from kubelet_trio.plugins.registry import PluginRegistry
from kubelet_trio.plugins.types import CSI_TYPE, DEVICE_TYPE, DRA_TYPE, PluginHandler

__all__ = ["CSI_TYPE", "DEVICE_TYPE", "DRA_TYPE", "PluginHandler", "PluginRegistry"]
