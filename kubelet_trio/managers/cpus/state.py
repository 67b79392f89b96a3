"""Who has which CPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from lightkube.models.core_v1 import Pod

from kubelet_trio.managers.cpus.masks import format_mask
from kubelet_trio.model import PodUid, pod_containers, pod_uid

_NONE: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class CpuState:
    """The state of the CPU manager: what its checkpoint has. Sets of CPUs are masks.

    Attributes:
        shared: the pool of all containers without CPUs of their own (defaultCpuSet).
        exclusive: pod to container to its own CPUs. Containers of a pod share some where one is
            an init container, whose CPUs later ones use again.
    """

    shared: int
    exclusive: Mapping[PodUid, Mapping[str, int]] = field(default_factory=dict)

    @property
    def given(self) -> int:
        """All CPUs that are exclusive to some container."""
        given = 0
        for uid in self.exclusive:
            given |= self.given_to(uid)
        return given

    def given_to(self, uid: PodUid) -> int:
        """Return the exclusive CPUs of all containers of a pod."""
        given = 0
        for cpus in self.exclusive.get(uid, _NONE).values():
            given |= cpus
        return given

    def own(self, uid: PodUid, container: str) -> int | None:
        """Return a container's exclusive CPUs; None if it has none."""
        return self.exclusive.get(uid, _NONE).get(container)

    def cpus(self, uid: PodUid, container: str) -> int:
        """Return the CPUs that a container is to run on: its own, else the shared pool."""
        own = self.own(uid, container)
        return self.shared if own is None else own

    def with_own(self, uid: PodUid, container: str, cpus: int) -> CpuState:
        """Return the state in which a container has CPUs of its own."""
        pod = {**self.exclusive.get(uid, _NONE), container: cpus}
        return CpuState(self.shared & ~cpus, {**self.exclusive, uid: pod})

    def without(self, uid: PodUid) -> CpuState:
        """Return the state in which a pod's CPUs are in the shared pool again."""
        if uid not in self.exclusive:
            return self
        rest = {other: cpus for other, cpus in self.exclusive.items() if other != uid}
        return CpuState(self.shared | self.given_to(uid), rest)


def cpusets(state: CpuState, pod: Pod) -> dict[str, str]:
    """Return cpuset.cpus of each container of a pod, such as `0-3,8`.

    "" is to be left as the runtime has it: with strict-cpu-reservation the shared pool can be
    empty.
    """
    uid = pod_uid(pod)
    names = (container.spec.name for container in pod_containers(pod))
    return {name: format_mask(state.cpus(uid, name)) for name in names}


def has_exclusive(state: CpuState, uid: PodUid, container: str | None = None) -> bool:
    """Return whether a container, or any of the pod's, has CPUs of its own.

    It then gets no CFS quota, nor does its pod's cgroup (DisableCPUQuotaWithExclusiveCPUs): the
    scheduler's periods would throttle it on CPUs that nobody else may use.
    """
    return bool(state.given_to(uid) if container is None else state.own(uid, container))
