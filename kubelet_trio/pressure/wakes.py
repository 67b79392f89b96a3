"""The kernel's word that memory runs short, so that nobody waits ten seconds for it.

On cgroup v1 an eventfd tells when the root group's usage crosses a threshold; on v2 a pressure
trigger (PSI) tells when tasks stall for memory. Either only wakes: what is so is read then.
Where the kernel cannot, waiting never ends, and the loop beneath looks every ten seconds.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import structlog
import trio

from kubelet_trio.cgroups import CgroupHost

log = structlog.get_logger()

# Stalls of 150 ms within a second: what systemd-oomd and others take for the beginning.
_PSI_TRIGGER = b"some 150000 1000000"
_PSI = Path("/proc/pressure/memory")


@dataclass(slots=True)
class KernelMemoryWake:
    """`MemoryWake` of this kernel."""

    host: CgroupHost
    total: Callable[[], int]  # bytes of memory there are
    psi: Path = _PSI
    is_told: bool = False

    async def wait(self, below: int) -> None:
        """Wait until available memory may have fallen below so many bytes; perhaps for ever."""
        try:
            if self.host.version == 2:
                await self._wait_stalls()
            else:
                await self._wait_crossing(below)
        except OSError as exc:
            if not self.is_told:
                log.info("eviction.no_kernel_notification", error=str(exc))
            self.is_told = True
            await trio.sleep_forever()

    async def _wait_crossing(self, below: int) -> None:
        memory = self.host.mounts.get("memory")
        if memory is None:
            raise OSError("no memory controller")
        inactive = 0
        for line in (memory / "memory.stat").read_text().splitlines():
            if line.startswith("total_inactive_file "):
                inactive = int(line.split()[1])
        # What is available is all but the working set: usage less inactive pages.
        limit = max(0, self.total() - below + inactive)
        event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        try:
            usage = os.open(memory / "memory.usage_in_bytes", os.O_RDONLY | os.O_CLOEXEC)
            try:
                text = f"{event} {usage} {limit}"
                (memory / "cgroup.event_control").write_text(text)
                await trio.lowlevel.wait_readable(event)
            finally:
                os.close(usage)
        finally:
            os.close(event)

    async def _wait_stalls(self) -> None:
        trigger = os.open(self.psi, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.write(trigger, _PSI_TRIGGER)
            # Told as urgent data, which trio does not wait for: an epoll of our own does.
            with select.epoll() as poll:
                poll.register(trigger, select.EPOLLPRI)
                await trio.lowlevel.wait_readable(poll.fileno())
        finally:
            os.close(trigger)
