"""Set the cgroup and OOM score of the agent, and move the machine's processes to `systemCgroups`.

Both are checked periodically, because systemd or an administrator may change them. A refusal is
logged once; pods run regardless.

Source: ensureProcessInContainerWithOOMScore and ensureSystemCgroups in
pkg/kubelet/cm/container_manager_linux.go.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import trio

from kubelet_trio.cgroups import CgroupError, CgroupHost, is_in_cgroup, move_process, user_processes
from kubelet_trio.model import Offload, get_logger

log = get_logger()

# Seconds between two checks, as in Start of container_manager_linux.go: of ensureStateFunc, which
# keeps a cgroup, and of periodicTasks.
_WITH_CGROUP = 60.0
_SCORE_ONLY = 300.0
_SYSTEM = 60.0
# A process that forks during its move leaves the child behind. Upstream tries as often.
_TRIES = 10
_PROC = Path("/proc")


class Refusals:
    """Logs an error when it first occurs, and again only if it has changed or ended."""

    def __init__(self, event: str) -> None:
        self._event = event
        self._last = ""

    def note(self, error: str) -> None:
        """Log the error if it is new; "" means success."""
        if error and error != self._last:
            log.warning(self._event, error=error)
        self._last = error


def write_oom_score(score: int, proc: Path = _PROC / "self") -> None:
    """Set a process' `oom_score_adj`. Raises OSError if that is not permitted."""
    # A lower value needs CAP_SYS_RESOURCE (proc_pid_oom_score_adj(5)).
    (proc / "oom_score_adj").write_text(str(score))


@dataclass(slots=True)
class OwnProcess:
    """Keeps the agent in `kubeletCgroups` ("": in its current cgroup), with its OOM score."""

    score: int
    cgroup: str
    host: Callable[[], CgroupHost]
    offload: Offload
    proc: Path = _PROC
    pid: int = field(default_factory=os.getpid)
    _refusals: Refusals = field(default_factory=lambda: Refusals("process.not_moved"))
    _had_score: bool = False

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Check periodically until cancelled."""
        task_status.started()
        while True:
            await self.offload(self._set_score)
            if self.cgroup:
                try:
                    await self.offload(self._move)
                except (CgroupError, OSError) as exc:
                    self._refusals.note(str(exc))
                else:
                    self._refusals.note("")
            await trio.sleep(_WITH_CGROUP if self.cgroup else _SCORE_ONLY)

    def _set_score(self) -> None:
        try:
            write_oom_score(self.score, self.proc / str(self.pid))
        except OSError as exc:
            if self._had_score:  # else the refusal was logged at start
                log.warning("process.oom_score_adj", wanted=self.score, error=str(exc))
            self._had_score = False
        else:
            self._had_score = True

    def _move(self) -> None:
        host = self.host()
        if not is_in_cgroup(host, self.cgroup, self.pid, self.proc):
            move_process(host, self.cgroup, self.pid)
            log.info("process.moved", cgroup=self.cgroup)


@dataclass(slots=True)
class SystemProcesses:
    """Keeps the processes of the root cgroup in `systemCgroups`, but init and kernel threads."""

    cgroup: str
    host: Callable[[], CgroupHost]
    offload: Offload
    proc: Path = _PROC
    root: str = "/"
    _refusals: Refusals = field(default_factory=lambda: Refusals("system_cgroups.not_moved"))

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Check periodically until cancelled."""
        task_status.started()
        while True:
            try:
                left = await self.offload(self._ensure)
            except (CgroupError, OSError) as exc:
                self._refusals.note(str(exc))
            else:
                self._refusals.note("; ".join(left))
            await trio.sleep(_SYSTEM)

    def _ensure(self) -> list[str]:
        """Move all processes; return an error for each that could not be moved."""
        host = self.host()
        failures: list[str] = []
        for _ in range(_TRIES):
            # Kernel threads stay: a CPU limit could invert priorities (ensureSystemCgroups).
            pids = user_processes(host, self.root, self.proc)
            if not pids:
                return []
            failures = []
            for pid in pids:
                try:
                    move_process(host, self.cgroup, pid)
                except CgroupError as exc:
                    failures.append(str(exc))
            if len(failures) == len(pids):
                break  # none may be moved: another attempt would change nothing
        return failures
