"""Volumes: set up before a pod's containers, torn down after them, never removed while mounted."""

from kubelet_trio.volumes.empty_dir import has_tmpfs_noswap
from kubelet_trio.volumes.errors import VOLUME_ERRORS, VolumeError
from kubelet_trio.volumes.loop import BlockDevices, KernelBlockDevices, LoopUnavailableError
from kubelet_trio.volumes.manager import VolumeManager
from kubelet_trio.volumes.mounter import KernelMounter, Mounter
from kubelet_trio.volumes.mountinfo import MountPoint, parse_mountinfo, read_mountinfo

__all__ = [
    "VOLUME_ERRORS",
    "BlockDevices",
    "KernelBlockDevices",
    "KernelMounter",
    "LoopUnavailableError",
    "MountPoint",
    "Mounter",
    "VolumeError",
    "VolumeManager",
    "has_tmpfs_noswap",
    "parse_mountinfo",
    "read_mountinfo",
]
