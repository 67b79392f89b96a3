"""Pressure: the node runs short, and what is done before it runs out."""

from kubelet_trio.pressure.container_ooms import ContainerOomWatcher, RunningContainer
from kubelet_trio.pressure.local_storage import Excess, has_local_limits, local_storage_excess
from kubelet_trio.pressure.manager import (
    EvictablePods,
    EvictionManager,
    MemoryWake,
    Reclaim,
    Signals,
)
from kubelet_trio.pressure.memory_events import (
    Kills,
    MemoryEvents,
    MemoryEventsV1,
    MemoryEventsV2,
    open_memory_events,
)
from kubelet_trio.pressure.oom import KMSG, OomKill, OomWatcher, parse_kill
from kubelet_trio.pressure.ranking import (
    ContainerUsage,
    Disk,
    PodUsage,
    Verdict,
    eviction_verdict,
    rank_for_eviction,
)
from kubelet_trio.pressure.signals import FileSystems, Layout, NodeSignals, tree_usage
from kubelet_trio.pressure.thresholds import (
    Amount,
    EvictionPolicy,
    Observation,
    PressureState,
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
    "ContainerUsage",
    "Disk",
    "EvictablePods",
    "EvictionManager",
    "EvictionPolicy",
    "Excess",
    "FileSystems",
    "KernelMemoryWake",
    "Kills",
    "Layout",
    "MemoryEvents",
    "MemoryEventsV1",
    "MemoryEventsV2",
    "MemoryWake",
    "NodeSignals",
    "Observation",
    "OomKill",
    "OomWatcher",
    "PodUsage",
    "PressureState",
    "Reclaim",
    "RunningContainer",
    "Signals",
    "Threshold",
    "UsageReader",
    "Verdict",
    "eviction_verdict",
    "hard_settings",
    "has_local_limits",
    "local_storage_excess",
    "open_memory_events",
    "parse_kill",
    "parse_thresholds",
    "rank_for_eviction",
    "tree_usage",
]
