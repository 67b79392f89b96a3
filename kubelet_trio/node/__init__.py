"""The node itself, as seen from inside."""

from kubelet_trio.node.addresses import host_ips

__all__ = ["host_ips"]
