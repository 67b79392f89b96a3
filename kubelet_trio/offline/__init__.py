"""Keeps the API server's last state on disk, for a node that starts without a connection."""

from kubelet_trio.offline.files import Folder, Item, KnownTokens
from kubelet_trio.offline.keeper import Keeper
from kubelet_trio.offline.plan import kept_pod, plan_pass

__all__ = ["Folder", "Item", "Keeper", "KnownTokens", "kept_pod", "plan_pass"]
