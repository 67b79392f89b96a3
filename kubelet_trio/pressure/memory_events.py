"""Read and watch the kernel's count of OOM kills in each container's cgroup.

On version 2 the count is in `memory.events`, and one inotify instance watches all of them; the
file also changes while a container is at its limit, without a kill. On version 1 the count is in
`memory.oom_control`, and one eventfd fires for all cgroups, when one is out of memory or removed.
So a notice only says that it is worth reading the counts.

https://docs.kernel.org/admin-guide/cgroup-v2.html#memory-interface-files
https://docs.kernel.org/admin-guide/cgroup-v1/memory.html#oom-control
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import trio

from kubelet_trio.cgroups import CgroupHost
from kubelet_trio.model import ContainerId

_PROC = Path("/proc")
# Seconds after a notice of version 1 in which the kill is counted: the kernel sends the notice
# first.
_LATE = 5.0


@dataclass(frozen=True, slots=True)
class Kills:
    """The counts of a container's cgroup since its creation."""

    killed: int
    at_limit: int = 0  # how often its own limit was the cause; 0 if the kernel does not count it


class MemoryEvents(Protocol):
    """The seam to the kernel, for one task; the caller closes it."""

    def add(self, container_id: ContainerId, pid: int) -> None:
        """Watch the cgroup of a container by its main process. Blocks.

        Raises OSError if the process has ended, or the container has no cgroup of its own.
        """
        ...

    def forget(self, container_id: ContainerId) -> None:
        """End a watch; the kernel may have ended it already."""
        ...

    def read(self, container_id: ContainerId) -> Kills | None:
        """Return the counts of a watched cgroup; None if it is gone. Blocks."""
        ...

    async def wait(self) -> Collection[ContainerId]:
        """Wait for a notice; return the containers whose counts may have changed."""
        ...

    def close(self) -> None: ...


@dataclass(slots=True)
class _Cgroups:
    """The directories of the watched cgroups."""

    host: CgroupHost
    proc: Path = _PROC
    directories: dict[ContainerId, Path] = field(default_factory=dict)

    def find(self, container_id: ContainerId, pid: int) -> Path:
        """Return the container's cgroup, from that of its process. Raises OSError."""
        # cgroups(7): `id:controllers:path`; version 2 is the line `0::<path>`.
        controller = "" if self.host.version == 2 else "memory"
        mount = self.host.mounts.get(controller)
        for line in (self.proc / str(pid) / "cgroup").read_text().splitlines():
            # Some runtimes name cgroups with colons (`cri-containerd:<id>`).
            _, controllers, path = line.split(":", 2)
            if mount is None or controller not in controllers.split(","):
                continue
            head, found, tail = path.partition(container_id)
            # Else another process has the PID now, or the container has no cgroup of its own.
            if found:
                # Up to the end of this directory's name (`.scope`): with systemd in a container
                # the process is in a cgroup further down.
                return mount / f"{head}{found}{tail.partition('/')[0]}".lstrip("/")
        raise FileNotFoundError(f"process {pid} is in no memory cgroup of {container_id}")

    def read(self, container_id: ContainerId, name: str) -> Kills | None:
        directory = self.directories.get(container_id)
        if directory is None:
            return None
        try:
            lines = (directory / name).read_text().splitlines()
        except OSError:
            return None
        counts = dict(line.split(" ", 1) for line in lines if " " in line)
        return Kills(int(counts.get("oom_kill", 0)), int(counts.get("oom", 0)))


class MemoryEventsV2:
    """Watches by inotify. Raises OSError if the user's limit of instances is reached."""

    _FILE = "memory.events"

    def __init__(self, host: CgroupHost, proc: Path = _PROC) -> None:
        from inotify_simple import INotify, flags

        self._inotify = INotify(nonblocking=True)
        self._modify, self._overflow = flags.MODIFY, flags.Q_OVERFLOW
        self._cgroups = _Cgroups(host, proc)
        self._watches: dict[int, ContainerId] = {}

    def add(self, container_id: ContainerId, pid: int) -> None:
        directory = self._cgroups.find(container_id, pid)
        watch = self._inotify.add_watch(str(directory / self._FILE), self._modify)
        self._watches[watch] = container_id
        self._cgroups.directories[container_id] = directory

    def forget(self, container_id: ContainerId) -> None:
        self._cgroups.directories.pop(container_id, None)
        for watch in [w for w, c in self._watches.items() if c == container_id]:
            del self._watches[watch]
            with suppress(OSError):  # the kernel removed the watch with the file
                self._inotify.rm_watch(watch)

    def read(self, container_id: ContainerId) -> Kills | None:
        return self._cgroups.read(container_id, self._FILE)

    async def wait(self) -> Collection[ContainerId]:
        await trio.lowlevel.wait_readable(self._inotify.fileno())
        events = self._inotify.read(timeout=0)
        if any(event.mask & self._overflow for event in events):  # events were lost (inotify(7))
            return tuple(self._cgroups.directories)
        # A removed watch sends a last event, IN_IGNORED (inotify(7)).
        return {self._watches[event.wd] for event in events if event.wd in self._watches}

    def close(self) -> None:
        self._inotify.close()


class MemoryEventsV1:
    """Watches by an eventfd. The kernel ends a watch when the cgroup is removed."""

    _FILE = "memory.oom_control"

    def __init__(self, host: CgroupHost, proc: Path = _PROC) -> None:
        self._cgroups = _Cgroups(host, proc)
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._is_early = False  # the kill of the last notice may not be counted yet

    def add(self, container_id: ContainerId, pid: int) -> None:
        directory = self._cgroups.find(container_id, pid)
        control = os.open(directory / self._FILE, os.O_RDONLY | os.O_CLOEXEC)
        try:
            # The kernel keeps the registration after `control` is closed.
            (directory / "cgroup.event_control").write_text(f"{self._event} {control}")
        finally:
            os.close(control)
        self._cgroups.directories[container_id] = directory

    def forget(self, container_id: ContainerId) -> None:
        self._cgroups.directories.pop(container_id, None)

    def read(self, container_id: ContainerId) -> Kills | None:
        return self._cgroups.read(container_id, self._FILE)

    async def wait(self) -> Collection[ContainerId]:
        with trio.move_on_after(_LATE if self._is_early else math.inf):
            await trio.lowlevel.wait_readable(self._event)
        try:
            os.eventfd_read(self._event)
            self._is_early = True
        except BlockingIOError:
            # No notice but the end of `_LATE`: the last look for the previous one.
            self._is_early = False
        return tuple(self._cgroups.directories)

    def close(self) -> None:
        os.close(self._event)


def open_memory_events(host: CgroupHost, proc: Path = _PROC) -> MemoryEvents:
    """Return the implementation for this kernel. Raises OSError if there is none."""
    if host.version == 2:
        return MemoryEventsV2(host, proc)
    if "memory" not in host.mounts:
        raise FileNotFoundError("no memory controller is mounted")
    return MemoryEventsV1(host, proc)
