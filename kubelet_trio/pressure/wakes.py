"""The kernel's word that memory runs short, so that nobody waits ten seconds for it.

On cgroup v1 an eventfd tells when the usage of the root group, or that of all pods, crosses a
threshold; on v2 a pressure trigger (PSI) tells when tasks stall for memory, on the machine or in
the pods' group. Either only wakes: what is so is read then. Where the kernel cannot, waiting never
ends, and the loop beneath looks every ten seconds.

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

# Stalls of 150 ms within two seconds, the shortest time that needs no CAP_SYS_RESOURCE.
# The kernel takes the last byte for the string's end, whatever it is.
_PSI_TRIGGER = b"some 150000 2000000\0"
_PSI = Path("/proc/pressure/memory")


@dataclass(slots=True)
class KernelMemoryWake:
    """`MemoryWake` of this kernel."""

    host: CgroupHost
    total: Callable[[], int]  # bytes of memory there are
    # Path of the cgroup of all pods below the mount; "": there is none.
    pods_cgroup: Callable[[], str] = lambda: ""
    psi: Path = _PSI
    trigger: bytes = _PSI_TRIGGER
    is_told: bool = False

    async def wait(self, below: Mapping[str, int]) -> None:
        """Wait until one of these signals may have fallen below so many bytes; perhaps for ever.

        Args:
            below: `memory.available` and `allocatableMemory.available`, as far as they matter.
        """
        with ExitStack() as held:
            try:
                if self.host.version == 2:
                    fd = self._stalls(held, ALLOCATABLE_MEMORY in below)
                else:
                    fd = self._crossings(held, below)
            except OSError as exc:
                if not self.is_told:
                    log.info("eviction.no_kernel_notification", error=str(exc))
                self.is_told = True
                await trio.sleep_forever()
                return
            await trio.lowlevel.wait_readable(fd)

    def _crossings(self, held: ExitStack, below: Mapping[str, int]) -> int:
        """Return an eventfd that tells of each threshold."""
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
        # What is available is all but the working set: usage less inactive pages.
        limit = max(0, capacity - below + _inactive(directory))
        usage = os.open(directory / "memory.usage_in_bytes", os.O_RDONLY | os.O_CLOEXEC)
        try:
            (directory / "cgroup.event_control").write_text(f"{event} {usage} {limit}")
        finally:
            os.close(usage)

    def _stalls(self, held: ExitStack, with_pods: bool) -> int:
        """Return an epoll that tells of each trigger.

        A trigger is told as urgent data, which trio does not wait for: an epoll of our own does.
        """
        files = [self.psi]
        if with_pods and (pods := self.pods_cgroup()):
            files.append(self.host.mounts[""] / pods.lstrip("/") / "memory.pressure")
        poll = held.enter_context(select.epoll())
        for path in files:
            trigger = _held(held, os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC))
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
