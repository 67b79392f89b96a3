"""The pod lifecycle event generator (PLEG): it notices changes in the runtime at little cost."""

from kubelet_trio.pleg.exits import ExitWaiter, ExitWatch, PidfdExitWaiter
from kubelet_trio.pleg.pleg import Pleg

__all__ = [
    "ExitWaiter",
    "ExitWatch",
    "PidfdExitWaiter",
    "Pleg",
]
