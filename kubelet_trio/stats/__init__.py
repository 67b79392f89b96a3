"""What the node, its pods and containers use, and the pages that tell of it."""

from kubelet_trio.stats.api import Summary
from kubelet_trio.stats.cadvisor import MachineInfo, cadvisor_text
from kubelet_trio.stats.provider import StatsProvider, StatsSettings
from kubelet_trio.stats.read import Host, HostReading, NodeUsage, disk_usage, read_host
from kubelet_trio.stats.resource import resource_text
from kubelet_trio.stats.subjects import (
    ContainerSubject,
    Disk,
    Places,
    PodSubject,
    find_places,
)
from kubelet_trio.stats.summary import Snapshot, make_summary
from kubelet_trio.stats.text import CONTENT_TYPE, Exposition, label_text, number, sample
from kubelet_trio.stats.usage import (
    Cpu,
    DeviceIo,
    Filesystem,
    Interface,
    Memory,
    Pressure,
    Psi,
    Usage,
)
from kubelet_trio.stats.volumes import VolumeUsage

__all__ = [
    "CONTENT_TYPE",
    "ContainerSubject",
    "Cpu",
    "DeviceIo",
    "Disk",
    "Exposition",
    "Filesystem",
    "Host",
    "HostReading",
    "Interface",
    "MachineInfo",
    "Memory",
    "NodeUsage",
    "Places",
    "PodSubject",
    "Pressure",
    "Psi",
    "Snapshot",
    "StatsProvider",
    "StatsSettings",
    "Summary",
    "Usage",
    "VolumeUsage",
    "cadvisor_text",
    "disk_usage",
    "find_places",
    "label_text",
    "make_summary",
    "number",
    "read_host",
    "resource_text",
    "sample",
]
