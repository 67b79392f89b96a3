"""Read the files of /proc/<pid> of containers' processes, and keep them open. Everything blocks.

To find and open such a file takes the kernel two to four times as long as to read it. A file that
is open belongs to its process: when that has ended the kernel answers ESRCH or ENOENT, whatever
process has its number then.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
from msgspec import Struct

from kubelet_trio.stats import proc_parse
from kubelet_trio.stats.open_files import Host, Room, content
from kubelet_trio.stats.usage import CgroupUsage

_MOST_FDS = 4096  # open files counted in one scrape, to bound its time
_FEW = 32  # names that are kept of a process' open files
_NONE = -1  # no descriptor: the file is not there, or not for us


class Processes(Struct, frozen=True, gc=False):
    """Open files of the processes of one cgroup."""

    fds: int = 0
    sockets: int = 0
    max_open_files: int | None = None  # the first process' soft limit; -1: unlimited
    states: Mapping[str, int] = msgspec.field(
        default_factory=dict
    )  # of the main threads, by letter


@dataclass(slots=True)
class _Process:
    """Descriptors of one process."""

    stat: int
    fds: int  # of the directory
    names: tuple[str, ...] = ()  # in the directory, if they are few


class _Seen(NamedTuple):
    """What is so of the processes of a cgroup as long as none of them runs."""

    cpu: int  # what it had used before they were looked at
    pids: tuple[int, ...]
    fds: int
    sockets: int
    states: Mapping[str, int]


class ProcessFiles:
    """The processes of one host. Not thread-safe."""

    def __init__(self, host: Host, room: Room) -> None:
        """Args:
        host: paths of the kernel's files.
        room: for files that stay open.
        """
        self._host = host
        self._room = room
        self._kept: dict[int, _Process] = {}
        self._seen: dict[str, _Seen] = {}  # by cgroup

    def read(self, cgroups: Mapping[str, CgroupUsage]) -> dict[str, Processes]:
        """Return the processes of cgroups by path; let go of those that are in none."""
        left, found = _MOST_FDS, {}
        pids: set[int] = set()
        seen: dict[str, _Seen] = {}
        for path, usage in cgroups.items():
            if not usage.pids:
                continue
            pids.update(usage.pids)
            now = self._seen.get(path)
            if now is None or usage.cpu is None or now[:2] != (usage.cpu.usage, usage.pids):
                # Its states too: to leave one, a process runs.
                now = _Seen(
                    _NONE if usage.cpu is None else usage.cpu.usage,
                    usage.pids,
                    *self._count(usage.pids, left),
                )
            if now.fds <= left:
                seen[path] = now
            left -= now.fds
            # As cAdvisor, one limit for the cgroup: its processes usually inherit the first one's.
            found[path] = Processes(now.fds, now.sockets, self._limit(usage.pids[0]), now.states)
        for pid in self._kept.keys() - pids:
            self._forget(pid)
        self._seen = seen
        return found

    def _count(self, pids: Sequence[int], most: int) -> tuple[int, int, dict[str, int]]:
        """Return how many files and sockets processes have open, and their states."""
        fds = sockets = 0
        states: dict[str, int] = {}
        for pid in pids:
            if fds >= most:
                break
            state, opened, targets = self._look(pid, most - fds)
            states[state] = states.get(state, 0) + 1
            fds += opened
            sockets += [target[:7] for target in targets].count("socket:")
        return fds, sockets, states

    def close(self) -> None:
        """Let go of everything."""
        for pid in list(self._kept):
            self._forget(pid)
        self._seen = {}

    def _look(self, pid: int, most: int) -> tuple[str, int, list[str]]:
        """Return a process' state, how many files it has open, and what `most` of them are."""
        kept = self._kept.get(pid)
        if kept is not None:
            try:
                return _read(kept, most)
            except OSError:
                self._forget(pid)  # it has ended; another one may have its number
        base = f"{self._host.proc}/{pid}"
        process = _Process(_open(f"{base}/stat"), _open(f"{base}/fd", os.O_DIRECTORY))
        try:
            found = _read(process, most)
        except OSError:
            _close(process)
            return "", 0, []
        if self._room.left >= 2 and _NONE not in (process.stat, process.fds):
            self._room.left -= 2
            self._kept[pid] = process
        else:
            _close(process)
        return found

    def _limit(self, pid: int) -> int | None:
        """Return the soft limit of open files; -1 if unlimited."""
        if self._host.proc == "/proc":
            # A tenth of what reading the file takes, but not allowed to everybody.
            try:
                return resource.prlimit(pid, resource.RLIMIT_NOFILE)[0]
            except (OSError, ValueError):
                pass
        descriptor = _open(f"{self._host.proc}/{pid}/limits")
        if descriptor == _NONE:
            return None
        try:
            return proc_parse.parse_open_files_limit(_text(descriptor))
        except OSError:
            return None
        finally:
            os.close(descriptor)

    def _forget(self, pid: int) -> None:
        process = self._kept.pop(pid)
        self._room.left += 2
        _close(process)


def _targets(directory: int, names: Sequence[str]) -> list[str]:
    """Return what links in a directory point to."""
    # By its descriptor the kernel resolves the path once, and not for each link.
    try:
        return [os.readlink(name, dir_fd=directory) for name in names]
    except OSError:
        found = []
        for name in names:
            # A file that was closed after the listing.
            with suppress(OSError):
                found.append(os.readlink(name, dir_fd=directory))
        return found


def _read(process: _Process, most: int) -> tuple[str, int, list[str]]:
    """Return a process' state and open files. Raises OSError if it has ended."""
    state = "" if process.stat == _NONE else proc_parse.parse_state(content(process.stat))
    directory, names = process.fds, process.names
    if directory == _NONE:
        return state, 0, []
    # Since Linux 6.2 the size is how many are open: if they are as many as before, and all of those
    # are still there, then there is no other. A listing takes five calls of the kernel.
    if names and len(names) <= most and os.stat(directory).st_size == len(names):
        try:
            return state, len(names), [os.readlink(name, dir_fd=directory) for name in names]
        except OSError:
            pass
    listed = os.listdir(directory)  # one process may have a million
    if len(listed) > _FEW or os.stat(directory).st_size != len(listed):
        process.names = ()
    else:
        process.names = tuple(listed)
    return state, len(listed), _targets(directory, listed[:most])


def _text(descriptor: int) -> str:
    return content(descriptor).decode("utf-8", "replace")


def _open(path: str, flags: int = 0) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
    except OSError:
        return _NONE


def _close(process: _Process) -> None:
    for descriptor in (process.stat, process.fds):
        if descriptor != _NONE:
            os.close(descriptor)
