"""Removes the cgroups of orphans: pods that no source wants and no worker terminates.

This is the child `pod-cgroups`. A cgroup with processes in it stays: the agent's runtime does not
know them, so they belong to another agent. If the pod's directory still exists, they were this
agent's, and the runtime has lost them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

import trio

from kubelet_trio.cgroups import CGROUP_ERRORS, CgroupBusyError
from kubelet_trio.model import Phase, PodUid, get_logger, housekeeping_round, next_due
from kubelet_trio.pods.cgroups.node import NodeCgroups

log = get_logger()

_PERIOD = 60.0  # seconds between two rounds


class Owners(Protocol):
    """Which pods have an owner: see `PodRegistry`."""

    async def wait_complete(self) -> None: ...
    def reclaiming(self, uid: PodUid) -> AbstractContextManager[bool]: ...


@dataclass(slots=True)
class OrphanCgroups:
    """Removes orphaned cgroups once a minute; see the module."""

    cgroups: NodeCgroups
    owners: Owners
    wait_synced: Callable[[], Awaitable[None]]  # until the runtime's pods are known
    pods_on_disk: Callable[[], Awaitable[frozenset[PodUid]]]  # that have a directory here
    _named: set[PodUid] = field(default_factory=set)  # logged as not removed
    _limited: set[PodUid] = field(default_factory=set)  # this agent's, with the least CPU

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Sweep until cancelled."""
        task_status.started()
        await self.wait_synced()
        await self.owners.wait_complete()
        while True:
            with housekeeping_round("pod cgroups"):
                await self.sweep()
            await trio.sleep_until(next_due(_PERIOD, Phase.POD_CGROUPS))

    async def sweep(self) -> None:
        """Remove the orphaned cgroups in which nothing runs."""
        try:
            found = await self.cgroups.list_pods()
        except OSError as exc:
            log.info("cgroups.unreadable", error=str(exc))
            return
        # The list may be old: `reclaiming` checks again, and keeps the pod from starting.
        for uid in sorted(found):
            with self.owners.reclaiming(uid) as is_orphan:
                if is_orphan:
                    await self._remove(uid)
        self._named &= found
        self._limited &= found

    async def _remove(self, uid: PodUid) -> None:
        try:
            await self.cgroups.remove_empty(uid)
        except CGROUP_ERRORS as exc:
            failure = exc
        else:
            log.info("cgroups.orphan_removed", podUID=uid)
            return
        if uid not in self._named:
            self._named.add(uid)
            log.warning("cgroups.orphan_stays", podUID=uid, error=str(failure))
        if isinstance(failure, CgroupBusyError) and uid not in self._limited:
            await self._limit(uid)

    async def _limit(self, uid: PodUid) -> None:
        """Give the processes in it the least CPU, if they were this agent's."""
        # Until the directory is gone (cleanupOrphanedPodCgroups in kubelet_pods.go).
        try:
            if uid in await self.pods_on_disk():
                await self.cgroups.starve(uid)
        except CGROUP_ERRORS as exc:
            log.info("cgroups.orphan_not_limited", podUID=uid, error=str(exc))
        else:
            self._limited.add(uid)
