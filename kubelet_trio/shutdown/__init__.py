"""Graceful node shutdown: pods end in order before the machine does."""

from kubelet_trio.shutdown.logind import (
    InhibitLock,
    Logind,
    LogindError,
    LogindSession,
    SystemLogind,
)
from kubelet_trio.shutdown.manager import NodeShutdown, ShutdownPods
from kubelet_trio.shutdown.plan import (
    ShutdownGroup,
    ShutdownPeriod,
    shutdown_groups,
    shutdown_periods,
)

__all__ = [
    "InhibitLock",
    "Logind",
    "LogindError",
    "LogindSession",
    "NodeShutdown",
    "ShutdownGroup",
    "ShutdownPeriod",
    "ShutdownPods",
    "SystemLogind",
    "shutdown_groups",
    "shutdown_periods",
]
