"""Node pressure: eviction thresholds, reclaim, eviction, and reports of OOM kills."""

from kubelet_trio.pressure.container_ooms import ContainerOomWatcher, RunningContainer
from kubelet_trio.pressure.manager import (
    EvictablePods,
    EvictionManager,
    Reclaim,
    Signals,
    pressure_rejection,
)
from kubelet_trio.pressure.memory_events import MemoryEvents, open_memory_events
from kubelet_trio.pressure.oom import KMSG, OomWatcher, parse_kill
from kubelet_trio.pressure.ranking import DiskUsage
from kubelet_trio.pressure.signals import FileSystems, NodeSignals
from kubelet_trio.pressure.thresholds import (
    Amount,
    EvictionPolicy,
    Observation,
    Threshold,
    hard_settings,
    parse_thresholds,
)
from kubelet_trio.pressure.usage import UsageReader
from kubelet_trio.pressure.wakes import KernelMemoryWake

__all__ = [
    "KMSG",
    "Amount",
    "ContainerOomWatcher",
    "DiskUsage",
    "EvictablePods",
    "EvictionManager",
    "EvictionPolicy",
    "FileSystems",
    "KernelMemoryWake",
    "MemoryEvents",
    "NodeSignals",
    "Observation",
    "OomWatcher",
    "Reclaim",
    "RunningContainer",
    "Signals",
    "Threshold",
    "UsageReader",
    "hard_settings",
    "open_memory_events",
    "parse_kill",
    "parse_thresholds",
    "pressure_rejection",
]
