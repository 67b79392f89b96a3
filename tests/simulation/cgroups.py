"""The cgroups of a simulated node: what pods are limited to, and whether containers keep to it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields, replace

import trio

from kubelet_trio.cgroups import (
    UNLIMITED,
    CgroupLimits,
    CgroupName,
    Written,
    cgroup_path,
    shares_in,
)
from kubelet_trio.cgroups.limits import weight_to_shares
from kubelet_trio.cri import v1
from kubelet_trio.model import PodUid
from kubelet_trio.testing import FakeContainer, FakeRuntime

_TAKES = 0.003  # seconds, so that the agent can be killed before a change and after it
_POD = "pod"
_NEW = CgroupLimits(
    cpu_shares=weight_to_shares(100), cpu_quota=UNLIMITED, cpu_period=100_000, memory=UNLIMITED
)


class SimulatedTree:
    """Cgroups of version 2 in memory, which see what their containers are limited to.

    Attributes:
        there: the limits by name.
        refusals: so many next changes of pods' limits are refused.
        exceeded: descriptions of containers that were limited to more than their pod.
    """

    def __init__(self, runtime: FakeRuntime) -> None:
        self._runtime = runtime
        self.there: dict[CgroupName, CgroupLimits] = {}
        self.refusals = 0
        self.exceeded: list[str] = []

    def of_pod(self, uid: PodUid) -> CgroupLimits | None:
        """Return the limits of a pod's cgroup; None if it has none."""
        return next((at for name, at in self.there.items() if name[-1] == _POD + uid), None)

    def check(self) -> None:
        """Note the running containers whose limits are above those of their pods."""
        for container in self._runtime.alive():
            self._compare(container, container.resources)

    def see_update(self, container: FakeContainer, then: v1.LinuxContainerResources) -> None:
        """See an update of a running container before it applies."""
        self.check()
        self._compare(container, then)

    def _compare(self, container: FakeContainer, resources: v1.LinuxContainerResources) -> None:
        limits = self.of_pod(container.uid)
        if limits is None:
            return
        mine = (resources.memory_limit_in_bytes, _cores(resources.cpu_quota, resources.cpu_period))
        pods = (limits.memory, _cores(limits.cpu_quota, limits.cpu_period))
        for what, limit, above in zip(("memory", "cpu"), mine, pods, strict=True):
            if _or_inf(limit) > _or_inf(above):
                text = f"{container.uid}/{container.name}: {what} {limit} above {above} of its pod"
                self.exceeded.append(f"t={self._runtime.node.now():g}: {text}")

    # CgroupOperations

    async def apply(self, name: CgroupName, limits: CgroupLimits) -> Written:
        await trio.sleep(_TAKES)
        if name[:-1] and name[:-1] not in self.there:
            raise AssertionError(f"{name} is made before what it is in")
        self.there.setdefault(name, _NEW)
        return self._write(name, limits)

    async def limit(self, path: str, limits: CgroupLimits) -> Written:
        await trio.sleep(_TAKES)
        name = _name(path)
        if name not in self.there:
            return Written(failures=(f"cgroup {path} is gone",))
        return self._write(name, limits)

    def _write(self, name: CgroupName, limits: CgroupLimits) -> Written:
        if self.refusals and name[-1].startswith(_POD):
            self.refusals -= 1
            return Written(failures=(f"cannot write to {cgroup_path(name, 'cgroupfs')}",))
        self.check()
        given = {f.name: getattr(limits, f.name) for f in fields(limits)}
        written = {name: value for name, value in given.items() if value is not None}
        if limits.cpu_shares is not None:  # the kernel keeps the weight
            written["cpu_shares"] = weight_to_shares(shares_in(limits.cpu_shares, 2))
        self.there[name] = replace(self.there[name], **written)
        self.check()
        return Written()

    async def exists(self, path: str) -> bool:
        await trio.lowlevel.checkpoint()
        return _name(path) in self.there

    async def read(self, name: CgroupName) -> CgroupLimits | None:
        await trio.sleep(_TAKES)
        return self.there.get(name)

    async def memory_usage(self, name: CgroupName) -> int | None:
        await trio.lowlevel.checkpoint()
        if name not in self.there:
            return None
        return sum(self._runtime.usage(c).memory for c in self._inside(name))

    def _inside(self, name: CgroupName) -> Iterator[FakeContainer]:
        yield from (c for c in self._runtime.alive() if name[-1] == _POD + c.uid)

    async def list_pods(self) -> frozenset[PodUid]:
        await trio.lowlevel.checkpoint()
        last = (name[-1] for name in self.there)
        return frozenset(PodUid(part[len(_POD) :]) for part in last if part.startswith(_POD))

    async def remove(self, uid: PodUid) -> None:
        await trio.sleep(_TAKES)
        self.there = {n: limits for n, limits in self.there.items() if n[-1] != _POD + uid}

    async def remove_empty(self, uid: PodUid) -> None:
        await self.remove(uid)

    async def limit_pod(self, uid: PodUid, limits: CgroupLimits) -> None:
        for name in [name for name in self.there if name[-1] == _POD + uid]:
            await self.limit(cgroup_path(name, "cgroupfs"), limits)


def _name(path: str) -> CgroupName:
    return tuple(path.strip("/").split("/"))


def _cores(quota: int | None, period: int | None) -> float | None:
    if quota is None or quota <= 0 or not period:
        return None
    return quota / period


def _or_inf(limit: float | None) -> float:
    return math.inf if limit is None or limit <= 0 else limit
