"""The kernel's count of the processes that it killed in each container's cgroup: the files.

On version 2 `memory.events` counts, and inotify tells that it changed: one instance for all. It
changes also while a container merely sits at its limit, so what is told is that a look is worth
while. On version 1 `memory.oom_control` counts, and an eventfd tells that a cgroup runs out, or
that it was removed: one for all, so it does not say which. It tells before the kill is counted.

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
_LATE = 5.0  # seconds in which a kill is counted, after the notice of version 1


@dataclass(frozen=True, slots=True)
class Kills:
    """What a container's cgroup has counted since it was made."""

    killed: int
    at_limit: int = 0  # how often its own limit was why; 0 where the kernel does not tell


class MemoryEvents(Protocol):
    """The seam to the kernel. One life: made, used by one task, closed."""

    def add(self, container_id: ContainerId, pid: int) -> None:
        """Watch the cgroup of a container by its main process. Blocks.

        Raises OSError where there is none to be found: the process has ended, or nobody made one.
        """
        ...

    def forget(self, container_id: ContainerId) -> None:
        """End a watch; one that the kernel has ended already is fine."""
        ...

    def read(self, container_id: ContainerId) -> Kills | None:
        """Return what a watched cgroup counts; None if it is gone. Blocks."""
        ...

    async def wait(self) -> Collection[ContainerId]:
        """Wait for a notice; return where a look is worth while."""
        ...

    def close(self) -> None: ...


@dataclass(slots=True)
class _Cgroups:
    """Where the cgroups are."""

    host: CgroupHost
    proc: Path = _PROC
    directories: dict[ContainerId, Path] = field(default_factory=dict)

    def find(self, container_id: ContainerId, pid: int) -> Path:
        """Return the cgroup named after a container that a process is in, or below. OSError."""
        controller = "" if self.host.version == 2 else "memory"
        mount = self.host.mounts.get(controller)
        for line in (self.proc / str(pid) / "cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if mount is None or controller not in controllers.split(","):
                continue
            head, found, tail = path.partition(container_id)
            if found:  # else the number is another's by now, or it has no cgroup of its own
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
    """By inotify. Raises OSError where the machine's instances are used up."""

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
            with suppress(OSError):  # went with the file
                self._inotify.rm_watch(watch)

    def read(self, container_id: ContainerId) -> Kills | None:
        return self._cgroups.read(container_id, self._FILE)

    async def wait(self) -> Collection[ContainerId]:
        await trio.lowlevel.wait_readable(self._inotify.fileno())
        events = self._inotify.read(timeout=0)
        if any(event.mask & self._overflow for event in events):
            return tuple(self._cgroups.directories)
        return {self._watches[event.wd] for event in events if event.wd in self._watches}

    def close(self) -> None:
        self._inotify.close()


class MemoryEventsV1:
    """By an eventfd. The kernel ends each watch when the cgroup is removed."""

    _FILE = "memory.oom_control"

    def __init__(self, host: CgroupHost, proc: Path = _PROC) -> None:
        self._cgroups = _Cgroups(host, proc)
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._is_early = False  # the last notice may have come before its kill was counted

    def add(self, container_id: ContainerId, pid: int) -> None:
        directory = self._cgroups.find(container_id, pid)
        control = os.open(directory / self._FILE, os.O_RDONLY | os.O_CLOEXEC)
        try:
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
            self._is_early = False
        return tuple(self._cgroups.directories)

    def close(self) -> None:
        os.close(self._event)


def open_memory_events(host: CgroupHost, proc: Path = _PROC) -> MemoryEvents:
    """Return what this kernel has. Raises OSError where it has nothing."""
    if host.version == 2:
        return MemoryEventsV2(host, proc)
    if "memory" not in host.mounts:
        raise FileNotFoundError("no memory controller is mounted")
    return MemoryEventsV1(host, proc)
