"""Events: recorded, counted, kept on the node and sent to the API server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kubelet_trio._deferred import names_on_demand
from kubelet_trio.events.recorder import EventRecorder
from kubelet_trio.events.ring import EventRing

if TYPE_CHECKING:
    from kubelet_trio.events.api import ApiEvents

# Loaded only on nodes of a cluster.
_DEFERRED = {
    "ApiEvents": "api",
}

__all__ = [
    "ApiEvents",
    "EventRecorder",
    "EventRing",
]

__getattr__ = names_on_demand(__name__, _DEFERRED)
