"""What a command leaves running in a container when the runtime kills it for its time.

Runtimes kill the command's own process and nothing that it started (containerd 1.6: of
`sh -c "sleep 1000; true"` the sleep stays, one more for each run of the probe, and holds
the call open as well). But runtimes give a command a session of its own, and what it
starts stays in that. So, while the command still runs, the session's leader is looked up:
a process in the container's cgroup that leads a session, has exactly the command's
arguments and began no earlier than the call. Once that leader is dead, whatever is left of its
session is killed; its number cannot be given to another process while one is left.

Where the agent cannot see the container's processes nothing is found, and nothing done.
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

_CLOCK_SLACK = 0.5  # s: start times are in hundredths, and clocks are read one after the other


class ExecOrphans(Protocol):
    """Finds and ends what commands leave behind."""

    async def find(self, pid: int, command: Sequence[str], age: float) -> frozenset[int]:
        """Return the leaders of sessions that a command begun `age` s ago may have.

        `pid` is the first process of the command's container.
        """
        ...

    async def kill(self, leaders: Iterable[int]) -> None:
        """Kill what is left of the sessions whose leaders have ended."""
        ...


@dataclass(frozen=True, slots=True)
class _Process:
    pid: int
    is_zombie: bool
    session: int
    started: float  # seconds since boot


class ProcOrphans:
    """`ExecOrphans` by way of /proc."""

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
        processes = list(self._processes())
        alive = {process.pid for process in processes if not process.is_zombie}
        for process in processes:
            if process.session in leaders - alive and not process.is_zombie:
                self._kill_one(process)

    def _kill_one(self, process: _Process) -> None:
        """Kill a process if it still is the one that was seen."""
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
        # The name is in parentheses and may hold anything; fields are counted after it.
        fields = self._read(pid, "stat").rpartition(b")")[2].split()
        if len(fields) < 20:
            return None
        ticks = os.sysconf("SC_CLK_TCK")
        return _Process(pid, fields[0] in (b"Z", b"X"), int(fields[3]), int(fields[19]) / ticks)

    def _read(self, pid: int, name: str) -> bytes:
        """Return a file of a process, empty if the process is gone or not ours to see."""
        try:
            return (self._proc / str(pid) / name).read_bytes()
        except OSError:
            return b""
