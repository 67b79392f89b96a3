"""Read the node's eviction signals. Everything blocks: callers use a thread.

It costs an idle node a few small files, and a statfs for each file system, every ten seconds.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kubelet_trio.cgroups import CgroupHost
from kubelet_trio.model import count_tree, disk_space
from kubelet_trio.pressure.ranking import DiskUsage
from kubelet_trio.pressure.thresholds import (
    ALLOCATABLE_MEMORY,
    CONTAINER_FS,
    CONTAINER_INODES,
    IMAGE_FS,
    IMAGE_INODES,
    MEMORY,
    NODE_FS,
    NODE_INODES,
    PID,
    Observation,
)

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class FileSystems:
    """A path on each of the node's file systems; "" if unknown.

    Without the node's path no file system is read.
    """

    node: str
    image: str = ""
    container: str = ""


@dataclass(frozen=True, slots=True)
class Layout:
    """Which file systems differ."""

    dedicated: bool = False  # images are not on the node's
    split: bool = False  # writable layers are not on the images'


def file_system_layout(places: FileSystems) -> Layout:
    """Return which file systems differ. Raises OSError."""
    node = os.stat(places.node).st_dev
    image = os.stat(places.image).st_dev if places.image else node
    container = os.stat(places.container).st_dev if places.container else image
    return Layout(dedicated=image != node, split=container != image)


@dataclass(frozen=True, slots=True)
class NodeSignals:
    """The `Signals` of this machine."""

    host: CgroupHost
    # The path of the pods' cgroup below the mount; "" if there is none.
    pods_cgroup: Callable[[], str] = lambda: ""
    proc: Path = _PROC

    def observe(self, places: FileSystems) -> Mapping[str, Observation]:
        """Return the signals that can be read."""
        found: dict[str, Observation] = {}
        total = self._meminfo().get("MemTotal", 0)
        # A signal that cannot be read is left out: its thresholds then count as not met.
        with suppress(OSError, ValueError):
            found[MEMORY] = Observation(max(0, total - self._working_set("")), total)
        if pods := self.pods_cgroup():
            with suppress(OSError, ValueError):
                # Without enforcement of node allocatable the pods' cgroup has no limit.
                limit = min(self._limit(pods), total)
                used = self._working_set(pods)
                found[ALLOCATABLE_MEMORY] = Observation(max(0, limit - used), limit)
        with suppress(OSError, ValueError):
            found[PID] = self._pids()
        if not places.node:
            return found
        image = places.image or places.node
        for path, space_signal, inode_signal in (
            (places.node, NODE_FS, NODE_INODES),
            (image, IMAGE_FS, IMAGE_INODES),
            (places.container or image, CONTAINER_FS, CONTAINER_INODES),
        ):
            with suppress(OSError):
                space = disk_space(path)
                found[space_signal] = Observation(space.available, space.capacity)
                if space.inodes:  # btrfs, for one, has no fixed number and reports 0
                    found[inode_signal] = Observation(space.inodes_free, space.inodes)
        return found

    def _memory_dir(self, path: str) -> Path:
        mount = self.host.mounts.get("" if self.host.version == 2 else "memory")
        if mount is None:
            raise OSError("no memory controller")
        return mount / path.lstrip("/")

    def _working_set(self, path: str) -> int:
        """Return the working set in bytes: usage without inactive file pages, as in cAdvisor."""
        directory = self._memory_dir(path)
        counts = _flat(directory / "memory.stat")
        if self.host.version == 1:
            used = int((directory / "memory.usage_in_bytes").read_text())
            # Only the `total_` values include the cgroups below (cgroup-v1/memory.html).
            return max(0, used - counts.get("total_inactive_file", 0))
        current = directory / "memory.current"
        if current.exists():
            used = int(current.read_text())
        else:  # the root cgroup has no memory.current (cgroup-v2.html)
            info = self._meminfo()
            used = info["MemTotal"] - info["MemFree"]
        return max(0, used - counts.get("inactive_file", 0))

    def _limit(self, path: str) -> int:
        name = "memory.limit_in_bytes" if self.host.version == 1 else "memory.max"
        text = (self._memory_dir(path) / name).read_text().strip()
        return 1 << 62 if text == "max" else int(text)

    def _meminfo(self) -> dict[str, int]:
        lines = (self.proc / "meminfo").read_text().splitlines()
        pairs = (line.partition(":") for line in lines)
        return {name: int(rest.split()[0]) * 1024 for name, _, rest in pairs}

    def _pids(self) -> Observation:
        # As in the Go kubelet (pkg/kubelet/stats/pidlimit): threads count, not processes.
        limits = ("sys/kernel/pid_max", "sys/kernel/threads-max")
        most = min(int((self.proc / name).read_text()) for name in limits)
        # The fourth field is `runnable/total` (proc_loadavg(5)).
        running = int((self.proc / "loadavg").read_text().split()[3].partition("/")[2])
        return Observation(most - running, most)

    def working_set(self, path: str) -> int | None:
        """Return a cgroup's working set in bytes; None if it cannot be read."""
        try:
            return self._working_set(path)
        except (OSError, ValueError):
            return None

    def processes(self, path: str) -> int:
        """Return the number of processes in a cgroup; 0 if it cannot be read."""
        # pids.current counts threads too (cgroup-v2.html, PID), as the limits of `_pids` do.
        mount = self.host.mounts.get("" if self.host.version == 2 else "pids")
        try:
            return int((mount / path.lstrip("/") / "pids.current").read_text()) if mount else 0
        except (OSError, ValueError):
            return 0


def _flat(path: Path) -> dict[str, int]:
    pairs = (line.split() for line in path.read_text().splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2}


def tree_usage(path: str, is_over: Callable[[], bool] = lambda: False) -> DiskUsage:
    """Return the disk usage of a directory's content on its own file system.

    If `is_over` returns True, return the count so far. See `count_tree`.
    """
    found = count_tree(path, is_over)
    return DiskUsage(found.space, found.inodes)
