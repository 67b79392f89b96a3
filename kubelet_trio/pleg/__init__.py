"""PLEG: knows at once what happens in the runtime, and pays nothing while nothing happens."""

from kubelet_trio.pleg.exits import ExitWaiter, PidfdExitWaiter
from kubelet_trio.pleg.pleg import Pleg

__all__ = [
    "ExitWaiter",
    "PidfdExitWaiter",
    "Pleg",
]
