"""Decide for how long the files of cgroups stay open: as long as somebody asks regularly.

Without requests nothing is held: the first reading opens and closes each file, one that follows
soon leaves them open for the next, and `run` closes them when nobody has asked for `_KEEP` seconds.
"""

from __future__ import annotations

import math
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import trio

from kubelet_trio.model import Bell, Offload
from kubelet_trio.stats.cgroup_files import CgroupFiles
from kubelet_trio.stats.open_files import Host

_KEEP = 150.0  # seconds: two scrapes a minute apart, and one that failed
# Files: those of 100 pods with two containers and of their processes, for which the kernel takes
# 40 MB.
_MOST = 10240
_CLOSE_LIMIT = 5.0  # seconds to close them at the end


class KeptFiles:
    """The files of one provider. `choose` and `run` belong to the loop, `opened` to threads."""

    def __init__(self, host: Host, offload: Offload) -> None:
        self._host = host
        self._offload = offload
        self._kept = CgroupFiles(host, most_files())
        self._lock = threading.Lock()
        self._asked_at = -math.inf
        self._is_running = False
        self._bell = Bell()

    @property
    def count(self) -> int:
        """How many files and directories are open."""
        return self._kept.count

    def choose(self) -> bool:
        """Note that a reading begins; return whether its files are to stay open."""
        now = trio.current_time()
        # Only where `run` will close them.
        keep = self._is_running and now - self._asked_at < _KEEP
        self._asked_at = now
        if keep:
            self._bell.ring()
        return keep

    @contextmanager
    def opened(self, keep: bool) -> Iterator[CgroupFiles]:
        """Return the files for a reading in this thread; other threads wait."""
        if keep:
            with self._lock:
                yield self._kept
        else:
            yield CgroupFiles(self._host)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Close the files that nobody has needed for long, until cancelled; ready at once."""
        self._is_running = True
        task_status.started()
        try:
            while True:
                await self._bell.wait_ring()
                await trio.sleep_until(self._asked_at + _KEEP)
                if trio.current_time() < self._asked_at + _KEEP:
                    self._bell.ring()
                else:
                    await self._offload(self._close)
        finally:
            self._is_running = False
            with trio.CancelScope(deadline=trio.current_time() + _CLOSE_LIMIT, shield=True):
                await self._offload(self._close)

    def _close(self) -> None:
        with self._lock:
            self._kept.close()


def most_files() -> int:
    """Return how many files of cgroups may stay open: half of the process' at most."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST if soft == resource.RLIM_INFINITY else min(_MOST, soft // 2)
