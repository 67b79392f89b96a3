"""Which cgroups this process may write, where not all of them are its own.

An ordinary user, and so a user namespace, has those that were given to it: on version 2 systemd
delegates a subtree with some controllers, on version 1 nobody delegates any.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from kubelet_trio.cgroups.detect import CgroupHost
from kubelet_trio.cgroups.names import CgroupDriver, cgroup_path, parse_cgroup
from kubelet_trio.cgroups.write import cgroup_directories

# The controllers of version 2 that pods are limited by.
V2_CONTROLLERS = frozenset({"cpu", "cpuset", "memory", "pids"})


@dataclass(frozen=True, slots=True)
class Delegation:
    """What may not be written. Empty: everything may."""

    denied: str = ""  # a directory in which no cgroup may be made
    missing: frozenset[str] = frozenset()  # controllers that were not delegated
    # Controllers that cannot be passed on, because processes are in the delegated cgroup itself.
    busy: frozenset[str] = frozenset()


def find_delegation(host: CgroupHost, root: str, driver: CgroupDriver) -> Delegation:
    """Return what of the cgroups below `--cgroup-root` is not this process' to write. Blocks."""
    tops = cgroup_directories(host, cgroup_path(parse_cgroup(root), driver))
    for top in tops.values():
        if not os.access(top, os.W_OK | os.X_OK):
            return Delegation(denied=str(top))
    if host.version != 2:
        return Delegation()
    top = tops[""]
    given, passed = _words(top / "cgroup.controllers"), _words(top / "cgroup.subtree_control")
    # The root of the hierarchy has no type, and may have processes beside other cgroups
    # (cgroup-v2.rst, "No Internal Process Constraint").
    is_busy = (top / "cgroup.type").exists() and bool(_words(top / "cgroup.procs"))
    busy = (V2_CONTROLLERS & given) - passed if is_busy else frozenset[str]()
    return Delegation(missing=V2_CONTROLLERS - given, busy=busy)


def _words(path: Path) -> frozenset[str]:
    try:
        return frozenset(path.read_text().split())
    except OSError:
        return frozenset()
