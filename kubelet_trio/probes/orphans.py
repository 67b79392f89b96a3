"""Kills processes that a probe's command leaves running when the runtime kills it at its timeout.

Runtimes kill only the command's own process. With containerd 1.6, `sh -c "sleep 1000; true"`
leaves the `sleep` running, one more with each run of the probe, which also holds the call open.

Runtimes start a command in a session of its own, and its children stay in that session. So while
the command runs, we look for the session's leader: a process in the container's cgroup that leads
a session, has exactly the command's arguments, and started no earlier than the call. Once that
leader is dead, the rest of its session is killed.

If the agent cannot see the container's processes, nothing is found or killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from kubelet_trio.model import Offload

_CLOCK_SLACK = 0.5  # s: start times have a resolution of 10 ms, and clocks are read in sequence


class ExecOrphans(Protocol):
    """Finds and kills processes that commands leave running."""

    async def find(self, pid: int, command: Sequence[str], age: float) -> frozenset[int]:
        """Return the session leaders that may belong to a command started `age` s ago.

        `pid` is the main process of the command's container.
        """
        ...

    async def kill(self, leaders: Iterable[int]) -> None:
        """Kill the remaining processes of those sessions whose leader has ended."""
        ...


@dataclass(frozen=True, slots=True)
class _Process:
    pid: int
    is_zombie: bool
    session: int
    started: float  # seconds since boot


class ProcOrphans:
    """`ExecOrphans` through /proc."""

    def __init__(self, offload: Offload, proc: Path = Path("/proc")) -> None:
        self._offload = offload
        self._proc = proc

    async def find(self, pid: int, command: Sequence[str], age: float) -> frozenset[int]:
        """See `ExecOrphans`."""
        since = time.clock_gettime(time.CLOCK_BOOTTIME) - age - _CLOCK_SLACK
        return await self._offload(self._find, pid, tuple(command), since)

    async def kill(self, leaders: Iterable[int]) -> None:
        """See `ExecOrphans`."""
        await self._offload(self._kill, frozenset(leaders))

    def _find(self, pid: int, command: tuple[str, ...], since: float) -> frozenset[int]:
        cgroup = self._read(pid, "cgroup")
        if not cgroup:
            return frozenset()
        arguments = b"".join(word.encode() + b"\0" for word in command)
        return frozenset(
            process.pid
            for process in self._processes()
            if process.session == process.pid != pid
            and process.started >= since
            and self._read(process.pid, "cmdline") == arguments
            and self._read(process.pid, "cgroup") == cgroup
        )

    def _kill(self, leaders: frozenset[int]) -> None:
        # While a session has a process, the kernel does not reuse its id as a PID: a process with
        # the PID of a dead leader is no other leader.
        processes = list(self._processes())
        alive = {process.pid for process in processes if not process.is_zombie}
        for process in processes:
            if process.session in leaders - alive and not process.is_zombie:
                self._kill_one(process)

    def _kill_one(self, process: _Process) -> None:
        """Kill a process, unless its PID has been reused since it was listed."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            descriptor = os.pidfd_open(process.pid)
            try:
                seen = self._process(process.pid)
                if seen is not None and seen.session == process.session:
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            finally:
                os.close(descriptor)

    def _processes(self) -> Iterator[_Process]:
        for entry in os.listdir(self._proc):
            if entry.isdigit() and (process := self._process(int(entry))) is not None:
                yield process

    def _process(self, pid: int) -> _Process | None:
        # The name is in parentheses and may contain any character: count fields after the last ")".
        fields = self._read(pid, "stat").rpartition(b")")[2].split()
        if len(fields) < 20:
            return None
        ticks = os.sysconf("SC_CLK_TCK")
        return _Process(pid, fields[0] in (b"Z", b"X"), int(fields[3]), int(fields[19]) / ticks)

    def _read(self, pid: int, name: str) -> bytes:
        """Return a file of a process; empty if the process is gone or we may not read it."""
        try:
            return (self._proc / str(pid) / name).read_bytes()
        except OSError:
            return b""
