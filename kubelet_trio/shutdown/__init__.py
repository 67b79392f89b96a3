"""Graceful node shutdown: delay the machine's shutdown until the pods have terminated."""

from kubelet_trio.shutdown.logind import (
    InhibitLock,
    Logind,
    LogindError,
    LogindSession,
    SystemLogind,
)
from kubelet_trio.shutdown.manager import NOT_READY, REJECTED, NodeShutdown
from kubelet_trio.shutdown.plan import ShutdownPeriod, shutdown_periods

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
