"""What a replayed agent has instead of a machine: a clock, processes, cgroups, disks."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, field, fields, replace
from types import TracebackType

import trio

from kubelet_trio.cgroups import UNLIMITED, CgroupLimits, CgroupName, Written
from kubelet_trio.model import DiskSpace, PodUid
from kubelet_trio.replay.runtime import ReplayRuntime

_POD = "pod"
_NEW = CgroupLimits(cpu_shares=1024, cpu_quota=UNLIMITED, cpu_period=100_000, memory=UNLIMITED)


@dataclass(slots=True)
class ReplayClock:
    """Wall time as it was recorded, jumps included: a `WallClock` on virtual time."""

    times: list[float] = field(default_factory=list)  # virtual, each with the wall time
    walls: list[float] = field(default_factory=list)

    def set(self, at: float, wall: float) -> None:
        """Let the wall time be `wall` at a virtual time; calls come in order."""
        self.times.append(at)
        self.walls.append(wall)

    def wall(self, at: float) -> float:
        """Return the Unix seconds of a virtual time."""
        index = max(0, bisect_right(self.times, at) - 1)
        return self.walls[index] + at - self.times[index]

    def time(self) -> float:
        return self.wall(trio.current_time())


class ReplayExitWatch:
    """Waits for the recorded end of a process."""

    def __init__(self, ends_at: float) -> None:
        self._ends_at = ends_at

    async def wait_exited(self) -> None:
        if self._ends_at == math.inf:
            await trio.sleep_forever()
        await trio.sleep_until(self._ends_at)

    def is_older(self, than: float) -> bool:
        return True  # no process of a recording has the PID of another one

    def __enter__(self) -> ReplayExitWatch:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        pass


class ReplayExitWaiter:
    """Implements `pleg.ExitWaiter` with the recorded exits."""

    def __init__(self, runtime: ReplayRuntime) -> None:
        self._runtime = runtime

    def open(self, pid: int) -> ReplayExitWatch:
        """Watch a process. Raises ProcessLookupError if it has ended."""
        container_id = self._runtime.container_of(pid)
        ends_at = -math.inf if container_id is None else self._runtime.exit_of(container_id)
        if ends_at < trio.current_time():
            raise ProcessLookupError(f"no process {pid}")
        return ReplayExitWatch(ends_at)


def ample_space(path: str) -> DiskSpace:
    """Return the space of a disk that is as good as empty."""
    return DiskSpace(1 << 50, 1 << 50, 1 << 30, 1 << 30)


@dataclass(slots=True)
class MemoryCgroups:
    """Cgroups in memory: what was written is there, and nothing fails."""

    there: dict[CgroupName, CgroupLimits] = field(default_factory=dict)

    async def apply(self, name: CgroupName, limits: CgroupLimits) -> Written:
        await trio.lowlevel.checkpoint()
        self.there.setdefault(name, _NEW)
        return self._write(name, limits)

    async def limit(self, path: str, limits: CgroupLimits) -> Written:
        await trio.lowlevel.checkpoint()
        return self._write(tuple(path.strip("/").split("/")), limits)

    def _write(self, name: CgroupName, limits: CgroupLimits) -> Written:
        given = {f.name: getattr(limits, f.name) for f in fields(limits)}
        written = {key: value for key, value in given.items() if value is not None}
        self.there[name] = replace(self.there.get(name, _NEW), **written)
        return Written()

    async def exists(self, path: str) -> bool:
        await trio.lowlevel.checkpoint()
        return True

    async def read(self, name: CgroupName) -> CgroupLimits | None:
        await trio.lowlevel.checkpoint()
        return self.there.get(name)

    async def memory_usage(self, name: CgroupName) -> int | None:
        # It is not recorded: what a pod uses is below any limit.
        await trio.lowlevel.checkpoint()
        return 0

    async def limit_pod(self, uid: PodUid, limits: CgroupLimits) -> None:
        await trio.lowlevel.checkpoint()
        for name in [name for name in self.there if name[-1] == _POD + uid]:
            self._write(name, limits)

    async def remove(self, uid: PodUid) -> None:
        await trio.lowlevel.checkpoint()
        self.there = {n: limits for n, limits in self.there.items() if n[-1] != _POD + uid}

    async def remove_empty(self, uid: PodUid) -> None:
        await self.remove(uid)

    async def list_pods(self) -> frozenset[PodUid]:
        await trio.lowlevel.checkpoint()
        last = (name[-1] for name in self.there)
        return frozenset(PodUid(part[len(_POD) :]) for part in last if part.startswith(_POD))
