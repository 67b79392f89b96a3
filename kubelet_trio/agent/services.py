"""What every pod worker works with, made from the settings, the seams and the other parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from kubelet_trio.agent.settings import AgentSettings, Seams
from kubelet_trio.containers import NodeSettings
from kubelet_trio.credentials import ImageAccess
from kubelet_trio.cri import RuntimeHealth
from kubelet_trio.events import EventRecorder
from kubelet_trio.model import Meter, Purpose
from kubelet_trio.objects import ObjectStore
from kubelet_trio.pleg import Pleg
from kubelet_trio.pods import (
    BackOffTable,
    ImagePuller,
    NoServices,
    PodCgroups,
    PodNames,
    PodRecords,
    PodServices,
    PullRate,
    Remains,
    UserNamespaces,
)
from kubelet_trio.status import StatusStore
from kubelet_trio.volumes import VolumeManager


@dataclass(frozen=True, slots=True)
class ServiceParts:
    """The parts of the agent that workers reach through their services."""

    health: RuntimeHealth
    pleg: Pleg
    objects: ObjectStore
    cgroups: PodCgroups
    statuses: StatusStore
    events: EventRecorder
    meter: Meter
    node: Callable[[], NodeSettings]
    started_at: float
    access: ImageAccess | None = None  # None: whoever wants an image that is there may use it


def make_services(settings: AgentSettings, seams: Seams, parts: ServiceParts) -> PodServices:
    """Return what the workers share."""
    node, state = settings.node, parts.health.state
    around = seams.cluster.objects if seams.cluster is not None else None
    return PodServices(
        runtime=seams.runtime,
        runtime_state=state,
        observer=parts.pleg,
        images=ImagePuller(
            seams.runtime,
            parts.events,
            seams.clock,
            parallel_pulls=settings.parallel_pulls,
            rate=PullRate(settings.pull_qps, settings.pull_burst),
            keyring=seams.keyring,
            objects=parts.objects,
            access=parts.access,
            meter=parts.meter,
        ),
        volumes=VolumeManager(
            node.root_dir,
            seams.mounter,
            seams.offload_for(Purpose.VOLUMES),
            objects=parts.objects,
            tokens=around.tokens if around is not None else None,
            clock=seams.clock,
            allocatable=node.allocatable,
            recursive_read_only=lambda handler: handler in state.value.recursive_read_only,
            no_image_volumes=lambda: state.value.no_image_volumes,
            memory_allocatable=seams.memory_allocatable,
            tmpfs_noswap=seams.tmpfs_noswap,
            selinux=node.selinux,
            meter=parts.meter,
            events=parts.events,
        ),
        objects=parts.objects,
        cgroups=parts.cgroups,
        records=PodRecords(node.root_dir / "pods", seams.offload_for(Purpose.RECORDS)),
        users=UserNamespaces(
            node.root_dir / "pods",
            seams.offload_for(Purpose.RECORDS),
            per_pod=settings.ids_per_pod,
            max_pods=settings.admission.max_pods,
        ),
        statuses=parts.statuses,
        events=parts.events,
        clock=seams.clock,
        offload=seams.offload_for(Purpose.PODS),
        names=PodNames(),
        remains=Remains(seams.runtime, partial(parts.pleg.refresh, listing=True)),
        crash_back_off=BackOffTable(settings.crash_back_off),
        node=parts.node,
        started_at=parts.started_at,
        exec_orphans=seams.exec_orphans,
        service_env=around or NoServices(),
        sync_period=settings.sync_period,
        dead_kept=settings.container_gc.kept(),
        meter=parts.meter,
    )
