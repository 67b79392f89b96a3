"""The kernel's notification of memory pressure, so that eviction reacts within less than 10 s.

On cgroup v1 an eventfd fires when the usage of the root cgroup, or of the pods' cgroup, crosses a
threshold; on v2 a PSI trigger fires when tasks stall for memory, on the machine or in the pods'
cgroup. A notification only wakes the eviction manager, which then reads the signals. If the kernel
supports neither, `wait` never returns, and the manager's own period of ten seconds applies.

https://docs.kernel.org/accounting/psi.html#monitoring-for-pressure-thresholds
https://docs.kernel.org/admin-guide/cgroup-v1/memory.html#memory-thresholds
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import trio

from kubelet_trio.cgroups import CgroupHost
from kubelet_trio.model import get_logger
from kubelet_trio.pressure.thresholds import ALLOCATABLE_MEMORY, MEMORY

log = get_logger()

# Stalls of 150 ms within two seconds: without CAP_SYS_RESOURCE a window is a multiple of 2 s (psi).
# The kernel overwrites the last byte with the string's end (psi_write in kernel/sched/psi.c).
_PSI_TRIGGER = b"some 150000 2000000\0"
_PSI = Path("/proc/pressure/memory")


@dataclass(slots=True)
class KernelMemoryWake:
    """The `MemoryWake` of this kernel."""

    host: CgroupHost
    total: Callable[[], int]  # the machine's memory in bytes
    # The path of the pods' cgroup below the mount; "" if there is none.
    pods_cgroup: Callable[[], str] = lambda: ""
    psi: Path = _PSI
    trigger: bytes = _PSI_TRIGGER
    is_logged: bool = False

    async def wait(self, below: Mapping[str, int]) -> None:
        """Wait until one of the signals may be below its number of bytes; possibly for ever.

        Args:
            below: bytes by signal, of `memory.available` and `allocatableMemory.available`.
        """
        with ExitStack() as held:
            try:
                if self.host.version == 2:
                    fd = self._stalls(held, ALLOCATABLE_MEMORY in below)
                else:
                    fd = self._crossings(held, below)
            except OSError as exc:
                if not self.is_logged:
                    log.info("eviction.no_kernel_notification", error=str(exc))
                self.is_logged = True
                await trio.sleep_forever()
                return
            await trio.lowlevel.wait_readable(fd)

    def _crossings(self, held: ExitStack, below: Mapping[str, int]) -> int:
        """Return an eventfd that fires when a threshold is crossed (version 1)."""
        # It fires in both directions, so that falling usage wakes the manager as well.
        memory = self.host.mounts.get("memory")
        if memory is None:
            raise OSError("no memory controller")
        event = _held(held, os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
        places = {MEMORY: memory}
        if pods := self.pods_cgroup():
            places[ALLOCATABLE_MEMORY] = memory / pods.lstrip("/")
        for signal, amount in below.items():
            if signal in places:
                self._register(event, places[signal], amount, is_root=signal == MEMORY)
        return event

    def _register(self, event: int, directory: Path, below: int, *, is_root: bool) -> None:
        capacity = self.total()
        if not is_root:
            capacity = min(capacity, int((directory / "memory.limit_in_bytes").read_text()))
        # available = capacity - working set, and working set = usage - inactive file pages.
        # Inactive pages change, so the limit holds for one wait (UpdateThreshold upstream).
        limit = max(0, capacity - below + _inactive(directory))
        usage = os.open(directory / "memory.usage_in_bytes", os.O_RDONLY | os.O_CLOEXEC)
        try:
            (directory / "cgroup.event_control").write_text(f"{event} {usage} {limit}")
        finally:
            os.close(usage)

    def _stalls(self, held: ExitStack, with_pods: bool) -> int:
        """Return an epoll that becomes readable when a PSI trigger fires (version 2)."""
        # Version 2 has no thresholds; the Go kubelet has no notification there
        # (kubernetes/kubernetes#106331).
        files = [self.psi]
        if with_pods and (pods := self.pods_cgroup()):
            files.append(self.host.mounts[""] / pods.lstrip("/") / "memory.pressure")
        # A trigger fires as POLLPRI, which trio cannot wait for; an epoll of our own can.
        poll = held.enter_context(select.epoll())
        for path in files:
            # A trigger lasts until its descriptor is closed (psi.html).
            trigger = _held(held, os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC))
            # Before `register`: without a trigger the file polls as an error (psi_trigger_poll).
            os.write(trigger, self.trigger)
            poll.register(trigger, select.EPOLLPRI)
        return poll.fileno()


def _held(held: ExitStack, fd: int) -> int:
    held.callback(os.close, fd)
    return fd


def _inactive(directory: Path) -> int:
    for line in (directory / "memory.stat").read_text().splitlines():
        if line.startswith("total_inactive_file "):
            return int(line.split()[1])
    return 0
