"""The child `oom`: report processes that the kernel killed for lack of memory.

The kernel's log names each victim and its cgroup. A kill because the whole machine was out of
memory is the node's event `SystemOOM`, as in the Go kubelet. A kill in a container is an event of
its pod, also if the victim is not the main process (for which the runtime reports `OOMKilled`).
If the log cannot be read, `container_ooms` reports those.
"""

from __future__ import annotations

import errno
import os
import re
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import trio

from kubelet_trio.model import ContainerId, EventSink, ObjectRef, get_logger, node_ref

log = get_logger()

KMSG = Path("/dev/kmsg")
_RECORD = 8192  # bytes; a read returns one record (Documentation/ABI/testing/dev-kmsg)
_AT_ONCE = 64  # records read before other tasks run
# The line of dump_oom_summary in mm/oom_kill.c, since Linux 5.0. A process chooses its name, commas
# included: `task` extends to the last `,pid=`.
_KILL = re.compile(
    r"oom-kill:constraint=(?P<constraint>\w+),.*?"
    r"(?:(?P<whole>global_oom)|oom_memcg=(?P<limited>[^,]*)),"
    r"task_memcg=(?P<cgroup>[^,]*),task=(?P<task>.*),pid=(?P<pid>\d+),uid=\d+"
)
_ID = re.compile(r"[0-9a-f]{64}")  # the container ids of containerd and CRI-O


@dataclass(frozen=True, slots=True)
class OomKill:
    """A killed process."""

    process: str
    pid: int
    cgroup: str  # of the victim
    limited: str = ""  # the cgroup that was out of memory; "": the machine

    @property
    def is_system(self) -> bool:
        return self.limited in ("", "/")

    @property
    def reason(self) -> str:
        """What was out of memory, for the event's message."""
        if self.is_system:
            return "the node ran out of memory"
        if self.limited == self.cgroup:
            return "its memory limit was reached"
        if self.limited == self.cgroup.rpartition("/")[0]:
            return "the memory limit of its pod was reached"
        return f"the memory limit of {self.limited} was reached"

    @property
    def container_id(self) -> ContainerId | None:
        """The victim's container, by the name of its cgroup; None if it has none."""
        # The last id: with Kubernetes in a container (kind) the path begins with the outer one.
        found = _ID.findall(self.cgroup.rpartition("/")[2]) or _ID.findall(self.cgroup)
        return ContainerId(found[-1]) if found else None


def parse_kill(line: str) -> OomKill | None:
    """Return the kill that a line of the kernel's log reports, None if there is none."""
    match = _KILL.search(line)
    if match is None:
        return None
    return OomKill(match["task"], int(match["pid"]), match["cgroup"], match["limited"] or "")


@dataclass(slots=True)
class OomWatcher:
    """Reads the kernel's log."""

    node_name: str
    events: EventSink
    container: Callable[[ContainerId], ObjectRef | None]  # the object for a container's events
    kmsg: Path | None = KMSG  # None: disabled
    logged: Counter[ContainerId] = field(default_factory=Counter)  # for `ContainerOomWatcher`
    system_kills: int = 0
    container_kills: int = 0

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Watch until cancelled."""
        if self.kmsg is None:
            task_status.started()
            await trio.sleep_forever()
            return
        try:
            fd = os.open(self.kmsg, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as exc:
            # For example EPERM: kernel.dmesg_restrict, and no CAP_SYSLOG.
            log.info("oom.not_watched", path=str(self.kmsg), error=str(exc))
            task_status.started()
            await trio.sleep_forever()
            return
        try:
            # A restarted agent must not report old kills again.
            with suppress(OSError):  # in tests it is a pipe, which cannot seek
                os.lseek(fd, 0, os.SEEK_END)
            task_status.started()
            while True:
                await trio.lowlevel.wait_readable(fd)
                # A read returns one record; a pod's start and end log a dozen, of its network.
                left = _AT_ONCE
                while left and self._read(fd):
                    left -= 1
        finally:
            os.close(fd)

    def _read(self, fd: int) -> bool:
        """Read one record; return whether there may be another."""
        try:
            record = os.read(fd, _RECORD)
        except OSError as exc:
            # EPIPE: unread records were overwritten; the next read continues (dev-kmsg).
            # EINVAL: the record did not fit and is skipped (devkmsg_read in kernel/printk).
            if exc.errno not in (errno.EPIPE, errno.EAGAIN, errno.EINVAL):
                raise
            return exc.errno != errno.EAGAIN
        if not record:
            raise OSError(errno.EIO, "unexpected end of the kernel's log", str(self.kmsg))
        for line in record.decode("utf-8", "replace").splitlines():
            kill = parse_kill(line)
            if kill is not None:
                self._report(kill)
        return True

    def _report(self, kill: OomKill) -> None:
        log.warning(
            "oom.killed",
            process=kill.process,
            pid=kill.pid,
            cgroup=kill.cgroup,
            system=kill.is_system,
        )
        if kill.is_system:
            self.system_kills += 1
            text = f"System OOM encountered, victim process: {kill.process}, pid: {kill.pid}"
            self.events.emit(node_ref(self.node_name), "Warning", "SystemOOM", text)
        # A container's process can be the victim of the whole machine: then both events are sent.
        if kill.container_id is None:
            return
        self.logged[kill.container_id] += 1
        found = self.container(kill.container_id)
        if found is not None:
            self.container_kills += 1
            text = f"Process {kill.process} (pid {kill.pid}) was killed: {kill.reason}"
            self.events.emit(found, "Warning", "OOMKilling", text)
