"""Cgroups: their names under both drivers, which version the host has, and their removal."""

from kubelet_trio.cgroups.detect import (
    CgroupHost,
    cgroup_host,
    cgroup_version,
    has_swap_controller,
    is_swap_on,
    parse_cgroup_mounts,
)
from kubelet_trio.cgroups.names import (
    CgroupDriver,
    CgroupName,
    QosClass,
    cgroup_path,
    parse_cgroup,
    pod_cgroup,
    pod_cgroup_parent,
    qos_cgroup,
    uid_of_pod_cgroup,
)
from kubelet_trio.cgroups.pods import CgroupBusyError, PodCgroups

__all__ = [
    "CgroupBusyError",
    "CgroupDriver",
    "CgroupHost",
    "CgroupName",
    "PodCgroups",
    "QosClass",
    "cgroup_host",
    "cgroup_path",
    "cgroup_version",
    "has_swap_controller",
    "is_swap_on",
    "parse_cgroup",
    "parse_cgroup_mounts",
    "pod_cgroup",
    "pod_cgroup_parent",
    "qos_cgroup",
    "uid_of_pod_cgroup",
]
