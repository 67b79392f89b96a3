"""Graceful node shutdown: delay the machine's shutdown until the pods have terminated."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kubelet_trio._deferred import names_on_demand
from kubelet_trio.shutdown.plan import NOT_READY, REJECTED, ShutdownPeriod, shutdown_periods

if TYPE_CHECKING:
    from kubelet_trio.shutdown.logind import (
        InhibitLock,
        Logind,
        LogindError,
        LogindSession,
        SystemLogind,
    )
    from kubelet_trio.shutdown.manager import NodeShutdown

# Only for nodes with a grace period for their shutdown.
_DEFERRED = {
    "InhibitLock": "logind",
    "Logind": "logind",
    "LogindError": "logind",
    "LogindSession": "logind",
    "NodeShutdown": "manager",
    "SystemLogind": "logind",
}

__all__ = [
    "NOT_READY",
    "REJECTED",
    "InhibitLock",
    "Logind",
    "LogindError",
    "LogindSession",
    "NodeShutdown",
    "ShutdownPeriod",
    "SystemLogind",
    "shutdown_periods",
]

__getattr__ = names_on_demand(__name__, _DEFERRED)
