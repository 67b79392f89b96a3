"""Keeps the CPU sets of running containers as the managers' state says.

When a container gets CPUs of its own, all others have to leave them; when it ends, they may use
them again. This task compares the state with what each container was last given, at once after a
change and every `cpuManagerReconcilePeriod`, and updates those that differ. After a restart of the
agent every container is updated once: what it has is not known.

A call that hangs delays its own container and takes one of a few places; a call that fails is
retried in the next round. Source: reconcileState of pkg/kubelet/cm/cpumanager.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import trio

from kubelet_trio.cri import Runtime, RuntimeCallError, v1
from kubelet_trio.managers.node.holdings import ResourceManagers
from kubelet_trio.model import (
    ContainerId,
    ContainerRecord,
    ContainerState,
    RuntimePod,
    get_logger,
    next_due,
)

log = get_logger()

_PARALLEL = 8  # calls at one time: containerd serializes most of their work


class CpusetReconciler:
    """Updates the CPU sets of running containers."""

    def __init__(
        self,
        managers: ResourceManagers,
        runtime: Runtime,
        pods: Callable[[], Iterable[RuntimePod]],
        period: float,
    ) -> None:
        """Args:
        managers: the state.
        runtime: updates containers.
        pods: returns the active pods as last observed.
        period: seconds between rounds if nothing changes.
        """
        self._managers = managers
        self._runtime = runtime
        self._pods = pods
        self._period = period
        self._places = trio.CapacityLimiter(_PARALLEL)
        self._busy: set[ContainerId] = set()
        self._trouble: dict[ContainerId, str] = {}  # as last logged

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Reconcile until cancelled."""
        async with trio.open_nursery() as calls:
            task_status.started()
            while True:
                self._managers.changed.clear()
                self._round(calls)
                with trio.move_on_at(next_due(self._period)):
                    await self._managers.changed.wait_ring()

    def _round(self, calls: trio.Nursery) -> None:
        existing: set[ContainerId] = set()
        for pod in self._pods():
            for container in pod.containers:
                existing.add(container.id)
                if container.state is ContainerState.RUNNING and container.id not in self._busy:
                    self._start(calls, pod, container)
        self._managers.forget_containers(existing)
        for container_id in self._trouble.keys() - existing:
            del self._trouble[container_id]

    def _start(self, calls: trio.Nursery, pod: RuntimePod, container: ContainerRecord) -> None:
        cpus = self._managers.cpuset_due(pod.uid, container.name, container.id)
        if cpus:
            self._busy.add(container.id)
            calls.start_soon(self._update, pod, container, name=f"cpus of {container.id}")

    async def _update(self, pod: RuntimePod, container: ContainerRecord) -> None:
        try:
            async with self._places:
                # Read again: it may have changed while this waited for its place.
                cpus = self._managers.cpuset_due(pod.uid, container.name, container.id)
                if cpus:
                    await self._set(pod, container, cpus)
        finally:
            self._busy.discard(container.id)

    async def _set(self, pod: RuntimePod, container: ContainerRecord, cpus: str) -> None:
        resources = v1.LinuxContainerResources(cpuset_cpus=cpus)
        try:
            await self._runtime.update_container_resources(container.id, resources)
        except RuntimeCallError as exc:
            problem = f"{cpus}: {exc}"
            if self._trouble.get(container.id) != problem:
                log.warning(
                    "container.cpus_not_set",
                    pod=f"{pod.namespace}/{pod.name}",
                    containerName=container.name,
                    cpus=cpus,
                    error=str(exc),
                    retry_in=self._period,
                )
            self._trouble[container.id] = problem
            return
        self._trouble.pop(container.id, None)
        self._managers.note_applied(container.id, cpus)
        if self._managers.cpuset_due(pod.uid, container.name, container.id):
            self._managers.changed.ring()  # it changed during the call, when this one was busy
