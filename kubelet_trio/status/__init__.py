"""Pod statuses: collected from the workers, and sent to the API server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kubelet_trio._deferred import names_on_demand
from kubelet_trio.status.pod_starts import PodStarts
from kubelet_trio.status.pull_times import PullTimes
from kubelet_trio.status.store import OnChange, StatusStore, no_watches

if TYPE_CHECKING:
    from kubelet_trio.status.manager import StatusManager
    from kubelet_trio.status.mirrors import MirrorPods

# Loaded on first use: only a node of a cluster needs them.
_DEFERRED = {
    "MirrorPods": "mirrors",
    "StatusManager": "manager",
}

__all__ = [
    "MirrorPods",
    "OnChange",
    "PodStarts",
    "PullTimes",
    "StatusManager",
    "StatusStore",
    "no_watches",
]

__getattr__ = names_on_demand(__name__, _DEFERRED)
