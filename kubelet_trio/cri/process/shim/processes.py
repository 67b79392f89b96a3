"""Processes as a shim needs them: finding, killing and reaping all that came of one."""

from __future__ import annotations

import contextlib
import os
import signal

from .files import write_file

TYPE_CHECKING = False
if TYPE_CHECKING:  # the shim is one program and pays for every import
    from collections.abc import Mapping
    from typing import Any

_START_TIME = 19  # in `process_stat`
_MOST_GENERATIONS = 100_000

_libc: list[Any] = []

PR_SET_PDEATHSIG, PR_SET_NAME, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 15, 36, 38


def prctl(option: int, argument: Any) -> None:
    import ctypes  # not for the agent, which reads /proc through this module

    if not _libc:
        _libc.append(ctypes.CDLL(None, use_errno=True))  # once, for all that are forked
    if _libc[0].prctl(option, argument, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def process_stat(pid: int | str) -> list[bytes] | None:
    """Return the fields of /proc/<pid>/stat after the name, None if there is no such process.

    Index 0 is the state, 1 the parent, 19 the start time in ticks since boot.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            return file.read(1024).rpartition(b") ")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def children_by_parent() -> dict[int, list[int]]:
    """Return every process that lives, by the PID of its parent."""
    found: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (stat := process_stat(name)) and stat[0] not in (b"Z", b"X"):
            found.setdefault(int(stat[1]), []).append(int(name))
    return found


def descendants(root: int, children: Mapping[int, list[int]]) -> list[int]:
    """Return all that came of a process and still hangs below it."""
    found: list[int] = []
    new = list(children.get(root, ()))
    while new:
        found += new
        new = [child for pid in new for child in children.get(pid, ())]
    return found


def send_signal(pid: int, number: int) -> None:
    """Send a signal to a child that nobody has waited for: its number stays its own till then."""
    # Dead already, or a setuid program that has become somebody else's.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def kill_descendants(cgroup_kill: str = "") -> None:
    """Kill all that hangs below this process. None of it can run away while we look for it.

    What is stopped does not fork: so everything is stopped first, until nothing new is found. A
    number that was listed may be another's by the time of the signal: so each process is opened,
    and must still come of this one then.
    """
    if cgroup_kill:
        write_file(cgroup_kill, "1")
    held: dict[int, Process] = {}  # those that are stopped
    for _ in range(100):
        new = [p for p in descendants(os.getpid(), children_by_parent()) if p not in held]
        if not new:
            break
        for pid in new:
            process = Process(pid)
            if process.comes_of(os.getpid()):
                held[pid] = process
                process.send(signal.SIGSTOP)
            else:
                process.close()
    for process in held.values():
        process.send(signal.SIGKILL)
        process.close()


class Process:
    """One process, held so that its number cannot become another's: by a pidfd.

    Where there is none (a kernel before 5.3, no descriptors left) the time that it started at says
    which it is.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._start = b""  # of a process that has ended meanwhile
        try:
            self._fd = os.pidfd_open(pid)
        except OSError:
            self._fd = -1
            if stat := process_stat(pid):
                self._start = stat[_START_TIME]

    def close(self) -> None:
        """Hold it no longer; no signal reaches it any more."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._start = -1, b""

    def comes_of(self, root: int) -> bool:
        """Whether it still hangs below a process."""
        pid = self.pid
        for _ in range(_MOST_GENERATIONS):
            stat = process_stat(pid)
            if stat is None:
                return False
            pid = int(stat[1])
            if pid == root:
                return True
            if pid <= 1:
                return False
        return False

    def send(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        # Dead already, or a setuid program that has become somebody else's.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self._fd >= 0:
                signal.pidfd_send_signal(self._fd, number)
            elif (stat := process_stat(self.pid)) and stat[_START_TIME] == self._start:
                os.kill(self.pid, number)


def reap() -> tuple[dict[int, int], bool]:
    """Return the wait statuses of children that ended, and whether any child is left."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended, False
        if pid == 0:
            return ended, True
        ended[pid] = status


def exit_code(status: int) -> int:
    """Return a wait status as runtimes tell it: 128 + n for signal n."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code
