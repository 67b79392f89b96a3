"""What was last known of the API server, on disk: a node that starts cut off goes by it."""

from kubelet_trio.offline.files import Folder, Item, KnownTokens
from kubelet_trio.offline.keeper import Keeper
from kubelet_trio.offline.plan import kept_pod, plan_pass

__all__ = ["Folder", "Item", "Keeper", "KnownTokens", "kept_pod", "plan_pass"]
