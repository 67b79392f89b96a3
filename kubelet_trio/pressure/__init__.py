"""Node pressure: eviction thresholds, reclaim, eviction, and reports of OOM kills."""

from kubelet_trio.pressure.container_ooms import ContainerOomWatcher, RunningContainer
from kubelet_trio.pressure.inputs import (
    EvictionInputs,
    EvictionNotes,
    NoEvictionNotes,
    PodUsages,
    Signals,
)
from kubelet_trio.pressure.manager import (
    EvictablePods,
    EvictionManager,
    Reclaim,
    pressure_rejection,
)
from kubelet_trio.pressure.memory_events import MemoryEvents, open_memory_events
from kubelet_trio.pressure.oom import KMSG, OomWatcher, parse_kill
from kubelet_trio.pressure.ranking import ContainerUsage, DiskUsage, PodUsage
from kubelet_trio.pressure.signals import FileSystems, Layout, NodeSignals, file_system_layout
from kubelet_trio.pressure.thresholds import (
    Amount,
    EvictionPolicy,
    Observation,
    Observations,
    Threshold,
    is_own_limit,
    parse_thresholds,
)
from kubelet_trio.pressure.usage import UsageReader
from kubelet_trio.pressure.wakes import KernelMemoryWake

__all__ = [
    "KMSG",
    "Amount",
    "ContainerOomWatcher",
    "ContainerUsage",
    "DiskUsage",
    "EvictablePods",
    "EvictionInputs",
    "EvictionManager",
    "EvictionNotes",
    "EvictionPolicy",
    "FileSystems",
    "KernelMemoryWake",
    "Layout",
    "MemoryEvents",
    "NoEvictionNotes",
    "NodeSignals",
    "Observation",
    "Observations",
    "OomWatcher",
    "PodUsage",
    "PodUsages",
    "Reclaim",
    "RunningContainer",
    "Signals",
    "Threshold",
    "UsageReader",
    "file_system_layout",
    "is_own_limit",
    "open_memory_events",
    "parse_kill",
    "parse_thresholds",
    "pressure_rejection",
]
