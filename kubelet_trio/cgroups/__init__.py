"""Cgroups above containers: names under both drivers, limits, creation and removal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kubelet_trio._deferred import names_on_demand
from kubelet_trio.cgroups.delegation import V2_CONTROLLERS, Delegation, find_delegation
from kubelet_trio.cgroups.detect import (
    CgroupHost,
    cgroup_host,
    cgroup_version,
    has_swap_controller,
    parse_cgroup_mounts,
)
from kubelet_trio.cgroups.errors import (
    CGROUP_ERRORS,
    CgroupBusyError,
    CgroupError,
    CgroupsDeniedError,
)
from kubelet_trio.cgroups.limits import (
    MIN_MILLI_CPU_LIMIT,
    MIN_SHARES,
    UNBOUNDED_HUGEPAGES,
    UNLIMITED,
    CgroupLimits,
    milli_cpu_to_quota,
    milli_cpu_to_shares,
    page_size_name,
    quota_to_milli_cpu,
    settings,
    shares_in,
    shares_to_milli_cpu,
)
from kubelet_trio.cgroups.names import (
    CgroupDriver,
    CgroupName,
    QosClass,
    cgroup_path,
    parse_cgroup,
    parse_existing,
    pod_cgroup,
    pod_cgroup_parent,
    qos_cgroup,
    uid_of_pod_cgroup,
)
from kubelet_trio.cgroups.pods import (
    CgroupTree,
    missing_cgroup_root,
    remove_cgroup,
)
from kubelet_trio.cgroups.processes import is_in_cgroup, move_process, user_processes
from kubelet_trio.cgroups.write import Written

if TYPE_CHECKING:
    from kubelet_trio.cgroups.systemd import SystemdBus

__all__ = [
    "CGROUP_ERRORS",
    "MIN_MILLI_CPU_LIMIT",
    "MIN_SHARES",
    "UNBOUNDED_HUGEPAGES",
    "UNLIMITED",
    "V2_CONTROLLERS",
    "CgroupBusyError",
    "CgroupDriver",
    "CgroupError",
    "CgroupHost",
    "CgroupLimits",
    "CgroupName",
    "CgroupTree",
    "CgroupsDeniedError",
    "Delegation",
    "QosClass",
    "SystemdBus",
    "Written",
    "cgroup_host",
    "cgroup_path",
    "cgroup_version",
    "find_delegation",
    "has_swap_controller",
    "is_in_cgroup",
    "milli_cpu_to_quota",
    "milli_cpu_to_shares",
    "missing_cgroup_root",
    "move_process",
    "page_size_name",
    "parse_cgroup",
    "parse_cgroup_mounts",
    "parse_existing",
    "pod_cgroup",
    "pod_cgroup_parent",
    "qos_cgroup",
    "quota_to_milli_cpu",
    "remove_cgroup",
    "settings",
    "shares_in",
    "shares_to_milli_cpu",
    "uid_of_pod_cgroup",
    "user_processes",
]

__getattr__ = names_on_demand(__name__, {"SystemdBus": "systemd"})
