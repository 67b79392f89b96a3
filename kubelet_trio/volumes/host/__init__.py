"""Volumes of disks, servers and programs of the host: local, iSCSI, FC, NFS, FlexVolume.

Only `plugins` is loaded with this package. Each kind is loaded when it is first used.
"""

from kubelet_trio.volumes.host.plugins import HOST_KINDS, PluginContext, host_kinds, unique_name

__all__ = ["HOST_KINDS", "PluginContext", "host_kinds", "unique_name"]
