"""PLEG: knows at once what happens in the runtime, and pays nothing while nothing happens."""

from kubelet_trio.pleg.cache import PodStatusCache
from kubelet_trio.pleg.exits import ExitWaiter, ExitWatch, PidfdExitWaiter
from kubelet_trio.pleg.pleg import RELIST_PERIOD, Pleg
from kubelet_trio.pleg.relist import UNHEALTHY_AFTER

__all__ = [
    "RELIST_PERIOD",
    "UNHEALTHY_AFTER",
    "ExitWaiter",
    "ExitWatch",
    "PidfdExitWaiter",
    "Pleg",
    "PodStatusCache",
]
