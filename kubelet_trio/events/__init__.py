"""Events: recorded by everyone, folded, kept and watched."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kubelet_trio._deferred import names_on_demand
from kubelet_trio.events.recorder import EventRecorder
from kubelet_trio.events.ring import EventRing

if TYPE_CHECKING:
    from kubelet_trio.events.api import ApiEvents

# What only a node of a cluster needs is loaded by those who have one.
_DEFERRED = {
    "ApiEvents": "api",
}

__all__ = [
    "ApiEvents",
    "EventRecorder",
    "EventRing",
]

__getattr__ = names_on_demand(__name__, _DEFERRED)
