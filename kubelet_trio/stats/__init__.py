"""Usage of the node, its pods and containers, and the pages that show it."""

from kubelet_trio.stats.api import Summary
from kubelet_trio.stats.driver_volumes import (
    DriverStats,
    DriverStatsError,
    DriverVolume,
    NoDriverStats,
)
from kubelet_trio.stats.families import FAMILIES
from kubelet_trio.stats.history import PERIOD as HISTORY_PERIOD
from kubelet_trio.stats.history import History
from kubelet_trio.stats.machine import MachineInfo
from kubelet_trio.stats.metered import MetricPage, Sample
from kubelet_trio.stats.open_files import Host
from kubelet_trio.stats.process import build_info, process_samples
from kubelet_trio.stats.provider import StatsProvider, StatsSettings
from kubelet_trio.stats.read import disk_usage, log_usage
from kubelet_trio.stats.subjects import ContainerSubject, DiskReading, PodSubject
from kubelet_trio.stats.text import CONTENT_TYPE
from kubelet_trio.stats.usage import CgroupUsage, Filesystem, Interface, Memory, PsiLine
from kubelet_trio.stats.volumes import VolumeUsage

__all__ = [
    "CONTENT_TYPE",
    "FAMILIES",
    "HISTORY_PERIOD",
    "CgroupUsage",
    "ContainerSubject",
    "DiskReading",
    "DriverStats",
    "DriverStatsError",
    "DriverVolume",
    "Filesystem",
    "History",
    "Host",
    "Interface",
    "MachineInfo",
    "Memory",
    "MetricPage",
    "NoDriverStats",
    "PodSubject",
    "PsiLine",
    "Sample",
    "StatsProvider",
    "StatsSettings",
    "Summary",
    "VolumeUsage",
    "build_info",
    "disk_usage",
    "log_usage",
    "process_samples",
]
