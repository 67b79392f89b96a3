"""The wiring of garbage collection: what it asks of the pods, and its children in the tree."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from lightkube.models.core_v1 import Pod
from trio_util import AsyncValue

from kubelet_trio.agent.settings import AgentSettings, Seams
from kubelet_trio.credentials import ImageAccess
from kubelet_trio.gc import ContainerCollector, ImageCollector
from kubelet_trio.model import EventSink, PodUid, Purpose, RuntimePod, pod_uid
from kubelet_trio.pleg import Pleg
from kubelet_trio.pods import PodRegistry
from kubelet_trio.sources import Desired
from kubelet_trio.supervision import ChildSpec


@dataclass(frozen=True, slots=True)
class PodsOfNode:
    """`gc.NodePods`, answered by registry, PLEG and status store."""

    registry: Callable[[], PodRegistry]
    pleg: Pleg
    desired: AsyncValue[Desired]
    statuses: AsyncValue[Mapping[PodUid, Pod]]

    async def wait_known(self) -> None:
        await self.pleg.wait_synced()
        await self.registry().wait_complete()

    def observed(self) -> Sequence[RuntimePod]:
        return list(self.pleg.cache.pods())

    def is_owned(self, uid: PodUid) -> bool:
        return self.registry().is_owned(uid)

    def has_ended(self, uid: PodUid) -> bool:
        return self.registry().has_ended(uid)

    def wanted(self) -> Iterable[Pod]:
        """Return what may start containers: wanted and not over, its manifest as it is now."""
        return list(self._wanted())

    def _wanted(self) -> Iterator[Pod]:
        for uid, pod in self.desired.value.pods.items():
            if not self.has_ended(uid):
                yield pod
        for uid, worker in self.registry().workers.items():
            if uid not in self.desired.value.pods and pod_uid(worker.pod) == uid:
                yield worker.pod

    def reclaiming(self, uid: PodUid) -> AbstractContextManager[bool]:
        return self.registry().reclaiming(uid)

    def adopt(self, uid: PodUid) -> None:
        self.registry().adopt(uid)


@dataclass(frozen=True, slots=True)
class Garbage:
    """The collectors of one agent."""

    containers: ContainerCollector
    images: ImageCollector

    def children(self) -> tuple[ChildSpec, ...]:
        return (
            ChildSpec("containers", self.containers.run),
            ChildSpec("images", self.images.run),
        )


def make_garbage(
    settings: AgentSettings,
    seams: Seams,
    pods: PodsOfNode,
    events: EventSink,
    access: ImageAccess | None = None,
) -> Garbage:
    """Build the collectors."""
    node = settings.node
    containers = ContainerCollector(
        seams.runtime,
        pods,
        node,
        settings.container_gc,
        events=events,
        clock=seams.clock,
        offload=seams.offload_for(Purpose.GARBAGE),
        relist_soon=pods.pleg.relist_soon,
        # Agents embedded in programs may share a directory of logs.
        clears_logs=not settings.instance or node.root_dir in node.pod_logs_dir.parents,
    )
    images = ImageCollector(
        seams.runtime,
        pods,
        settings.image_gc,
        node.node_name,
        events,
        seams.offload_for(Purpose.GARBAGE),
        sandbox_image=settings.sandbox_image,
        space=seams.disk_space,
        prune=access.prune if access is not None else None,
        clock=seams.clock,
    )
    return Garbage(containers, images)
