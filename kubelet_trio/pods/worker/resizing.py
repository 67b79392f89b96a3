"""Record what is allocated to a pod, and what of it its containers have."""

from __future__ import annotations

from collections.abc import Callable

from lightkube.models.core_v1 import ResourceRequirements

from kubelet_trio.cgroups import CgroupError
from kubelet_trio.model import (
    ContainerId,
    RuntimePod,
    get_logger,
    pod_containers,
    pod_object_ref,
    pod_uid,
)
from kubelet_trio.pods.services import PodServices
from kubelet_trio.pods.status import ResizeEvent, resize_completed, resize_started
from kubelet_trio.pods.types import ResizeTrigger
from kubelet_trio.pods.worker.allocation import PodAllocation
from kubelet_trio.pods.worker.reporter import PodReporter

log = get_logger()


class ResizeLedger:
    """Writes each step of a resize to the pod's record. The pod's worker is the only caller."""

    def __init__(
        self,
        services: PodServices,
        allocation: PodAllocation,
        reporter: PodReporter,
        reconsider: Callable[[ResizeTrigger], None],
    ) -> None:
        """Take the worker's parts; `reconsider` is called when other pods may have room."""
        self._services = services
        self._allocation = allocation
        self._reporter = reporter
        self._reconsider = reconsider

    async def accept(self) -> None:
        """Record the resources that the admitter has granted, and use them from now on."""
        allocation, observer = self._allocation, self._services.observer
        uid = pod_uid(allocation.allocated)
        if not observer.is_certain(uid):
            return
        if not allocation.is_recorded:
            await self._adopt(observer.get(uid))
        if allocation.granted is None:
            return
        pod, resize = allocation.accepted(observer.get(uid))
        if not await self._reporter.note_resize(pod, resize):
            return
        allocation.begin(pod, resize)
        self._emit(resize_started(pod, resize.generation))
        self._reconsider(ResizeTrigger.POD_RESIZED)  # a smaller request leaves room for others

    async def _adopt(self, observed: RuntimePod) -> None:
        """Find out what a pod has whose record is lost, or that another kubelet has started."""
        allocation, cgroups = self._allocation, self._services.cgroups
        managers, uid = self._services.managers, pod_uid(allocation.allocated)
        names = [c.spec.name for c in pod_containers(allocation.allocated)]
        no_quota = [name for name in names if managers.share(uid, name).no_quota]
        if allocation.adopt(observed, self._services.node(), no_quota):
            # The resize changes the pod's cgroup too, in the right order.
            self._reconsider(ResizeTrigger.POD_UPDATED)
            return
        try:
            if observed.exists and await cgroups.read(allocation.allocated) is not None:
                await cgroups.ensure(allocation.allocated)
        except CgroupError as exc:
            log.warning("pod.not_limited", error=str(exc))

    async def note_actuated(
        self, container_id: ContainerId | None, resources: ResourceRequirements | None
    ) -> None:
        """Record what a container has now, or with None that all of the pod is resized."""
        allocation = self._allocation
        if container_id is not None and resources is not None:
            allocation.actuated(container_id, resources)
            await self._reporter.save(allocation.allocated, None)
            return
        generation = allocation.finish()
        await self._reporter.save(allocation.allocated, None)
        self._emit(resize_completed(allocation.allocated, generation))
        self._reconsider(ResizeTrigger.POD_RESIZED)  # nothing of what it had counts any more

    def _emit(self, event: ResizeEvent) -> None:
        self._services.events.emit(pod_object_ref(self._allocation.allocated), *event)
