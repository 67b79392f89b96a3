"""The seam to the node's cgroups, and a wrapper that times each change.

Source: pkg/kubelet/cm/cgroup_manager_linux.go, which times create, update and destroy.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import trio

from kubelet_trio.cgroups import CgroupLimits, CgroupName, Written
from kubelet_trio.model import Meter, PodUid


class PodCgroupRemover(Protocol):
    """Removes pods' cgroups, on a node without QoS cgroups."""

    async def remove(self, uid: PodUid) -> None: ...


class CgroupOperations(PodCgroupRemover, Protocol):
    """The cgroups of one driver: see `cgroups.CgroupTree`."""

    async def apply(self, name: CgroupName, limits: CgroupLimits) -> Written: ...
    async def limit(self, path: str, limits: CgroupLimits) -> Written: ...
    async def exists(self, path: str) -> bool: ...
    async def read(self, name: CgroupName) -> CgroupLimits | None: ...
    async def memory_usage(self, name: CgroupName) -> int | None: ...
    async def limit_pod(self, uid: PodUid, limits: CgroupLimits) -> None: ...
    async def remove_empty(self, uid: PodUid) -> None: ...
    async def list_pods(self) -> frozenset[PodUid]: ...


@dataclass(frozen=True, slots=True)
class MeteredTree:
    """A `CgroupOperations` that forwards to another one, and times the calls."""

    tree: CgroupOperations
    meter: Meter

    async def apply(self, name: CgroupName, limits: CgroupLimits) -> Written:
        # Also if it creates the cgroup: one call does both.
        with self._timed("update"):
            return await self.tree.apply(name, limits)

    async def limit(self, path: str, limits: CgroupLimits) -> Written:
        with self._timed("update"):
            return await self.tree.limit(path, limits)

    async def limit_pod(self, uid: PodUid, limits: CgroupLimits) -> None:
        with self._timed("update"):
            await self.tree.limit_pod(uid, limits)

    async def remove(self, uid: PodUid) -> None:
        with self._timed("destroy"):
            await self.tree.remove(uid)

    async def remove_empty(self, uid: PodUid) -> None:
        with self._timed("destroy"):
            await self.tree.remove_empty(uid)

    async def exists(self, path: str) -> bool:
        return await self.tree.exists(path)

    async def read(self, name: CgroupName) -> CgroupLimits | None:
        return await self.tree.read(name)

    async def memory_usage(self, name: CgroupName) -> int | None:
        return await self.tree.memory_usage(name)

    async def list_pods(self) -> frozenset[PodUid]:
        return await self.tree.list_pods()

    @contextmanager
    def _timed(self, operation: str) -> Iterator[None]:
        began = trio.current_time()
        try:
            yield
        finally:
            took = trio.current_time() - began
            self.meter.observe("kubelet_cgroup_manager_duration_seconds", took, (operation,))
