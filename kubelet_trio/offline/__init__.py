"""Keeps the API server's last state on disk, for a node that starts without a connection."""

from kubelet_trio.offline.files import Folder
from kubelet_trio.offline.keeper import Keeper

__all__ = ["Folder", "Keeper"]
