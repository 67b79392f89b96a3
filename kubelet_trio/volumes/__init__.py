"""Volumes: set up before a pod's containers, torn down after them, never removed while mounted."""

from typing import TYPE_CHECKING

from kubelet_trio._deferred import names_on_demand
from kubelet_trio.volumes.attaching import AttachController
from kubelet_trio.volumes.csi import CsiServices
from kubelet_trio.volumes.empty_dir import has_tmpfs_noswap
from kubelet_trio.volumes.errors import VOLUME_ERRORS, AttachLimitError, VolumeError
from kubelet_trio.volumes.expansion import NoClaimStatus, VolumeGrowth
from kubelet_trio.volumes.host.plugins import PluginContext, host_kinds
from kubelet_trio.volumes.issuers import Issuers
from kubelet_trio.volumes.manager import VolumeManager
from kubelet_trio.volumes.mounter import KernelMounter, Mounter, is_bound_to_itself
from kubelet_trio.volumes.mountinfo import MountPoint, parse_mountinfo, read_mountinfo
from kubelet_trio.volumes.node_facts import NodeFacts

if TYPE_CHECKING:
    from kubelet_trio.volumes.inventory import VolumeFill, VolumeRow, list_volumes, read_listing
    from kubelet_trio.volumes.labels import VolumeLabels
    from kubelet_trio.volumes.loop import BlockDevices, KernelBlockDevices, LoopUnavailableError

# Loaded with the first `kubelet-trio volumes`, the first block volume, or on a host with SELinux.
_DEFERRED = {
    "BlockDevices": "loop",
    "KernelBlockDevices": "loop",
    "LoopUnavailableError": "loop",
    "VolumeLabels": "labels",
    "VolumeFill": "inventory",
    "VolumeRow": "inventory",
    "list_volumes": "inventory",
    "read_listing": "inventory",
}

__all__ = [
    "VOLUME_ERRORS",
    "AttachController",
    "AttachLimitError",
    "BlockDevices",
    "CsiServices",
    "Issuers",
    "KernelBlockDevices",
    "KernelMounter",
    "LoopUnavailableError",
    "MountPoint",
    "Mounter",
    "NoClaimStatus",
    "NodeFacts",
    "PluginContext",
    "VolumeError",
    "VolumeFill",
    "VolumeGrowth",
    "VolumeLabels",
    "VolumeManager",
    "VolumeRow",
    "has_tmpfs_noswap",
    "host_kinds",
    "is_bound_to_itself",
    "list_volumes",
    "parse_mountinfo",
    "read_listing",
    "read_mountinfo",
]

__getattr__ = names_on_demand(__name__, _DEFERRED)
