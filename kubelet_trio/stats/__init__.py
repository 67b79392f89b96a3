"""Usage of the node, its pods and containers, and the pages that show it."""

from kubelet_trio.stats.cadvisor import (
    MachineInfo,
)
from kubelet_trio.stats.provider import (
    StatsProvider,
    StatsSettings,
)
from kubelet_trio.stats.read import (
    Host,
    disk_usage,
)
from kubelet_trio.stats.subjects import (
    ContainerSubject,
    DiskReading,
    PodSubject,
)
from kubelet_trio.stats.text import (
    CONTENT_TYPE,
    Exposition,
    label_text,
    number,
    sample,
)
from kubelet_trio.stats.usage import (
    CgroupUsage,
    Filesystem,
    Interface,
    Memory,
    PsiLine,
)
from kubelet_trio.stats.volumes import (
    VolumeUsage,
)

__all__ = [
    "CONTENT_TYPE",
    "CgroupUsage",
    "ContainerSubject",
    "DiskReading",
    "Exposition",
    "Filesystem",
    "Host",
    "Interface",
    "MachineInfo",
    "Memory",
    "PodSubject",
    "PsiLine",
    "StatsProvider",
    "StatsSettings",
    "VolumeUsage",
    "disk_usage",
    "label_text",
    "number",
    "sample",
]
