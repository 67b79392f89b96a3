"""Finding, killing and reaping the descendants of a process."""

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
_MOST_GENERATIONS = 100_000  # ends the walk even if PIDs are reused in a circle

_libc: list[Any] = []

PR_SET_PDEATHSIG, PR_SET_NAME, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 15, 36, 38


def prctl(option: int, argument: Any) -> None:
    import ctypes  # here, since the agent imports this module for /proc only

    if not _libc:
        _libc.append(ctypes.CDLL(None, use_errno=True))  # once; forked processes inherit it
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
    """Return the PIDs of all live processes, by the PID of their parent."""
    found: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (stat := process_stat(name)) and stat[0] not in (b"Z", b"X"):
            found.setdefault(int(stat[1]), []).append(int(name))
    return found


def descendants(root: int, children: Mapping[int, list[int]]) -> list[int]:
    """Return the descendants of a process."""
    found: list[int] = []
    new = list(children.get(root, ()))
    while new:
        found += new
        new = [child for pid in new for child in children.get(pid, ())]
    return found


def send_signal(pid: int, number: int) -> None:
    """Send a signal to a child that was not reaped yet, so that its PID cannot be reused."""
    # It is dead, or a setuid program that runs as another user.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def kill_descendants(cgroup_kill: str = "") -> None:
    """Kill all descendants of this process, even if they fork meanwhile."""
    if cgroup_kill:
        write_file(cgroup_kill, "1")
    # A stopped process cannot fork: stop all of them, round by round, until no new one is found.
    # A listed PID may be reused before we signal it: hold each process by a pidfd, and check that
    # it still is a descendant.
    held: dict[int, Process] = {}  # stopped
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
    """One process, identified by a pidfd so that a reused PID is not mistaken for it.

    Without pidfds (kernels before 5.3, no free descriptor) its start time identifies it.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._start = b""  # stays empty for a process that has ended meanwhile
        try:
            self._fd = os.pidfd_open(pid)
        except OSError:
            self._fd = -1
            if stat := process_stat(pid):
                self._start = stat[_START_TIME]

    def close(self) -> None:
        """Release it; later signals are not sent."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._start = -1, b""

    def comes_of(self, root: int) -> bool:
        """Return whether it is a descendant of the process `root`."""
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
        # It is dead, or a setuid program that runs as another user.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self._fd >= 0:
                signal.pidfd_send_signal(self._fd, number)
            elif (stat := process_stat(self.pid)) and stat[_START_TIME] == self._start:
                os.kill(self.pid, number)


def reap() -> tuple[dict[int, int], bool]:
    """Reap ended children; return their wait statuses, and whether any child is left."""
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
    """Return the exit code of a wait status in the runtimes' convention: 128 + n for signal n."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code
