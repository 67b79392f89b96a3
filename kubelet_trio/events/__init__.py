"""Events: recorded by everyone, folded, kept and watched."""

from kubelet_trio.events.recorder import EventRecorder
from kubelet_trio.events.ring import EventRing

__all__ = ["EventRecorder", "EventRing"]
