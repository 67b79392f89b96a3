"""Make the probes of one pod."""

from __future__ import annotations

from collections.abc import Callable

from lightkube.models.core_v1 import Pod, PodStatus

from kubelet_trio.pods.services import PodServices
from kubelet_trio.probes import PodProbes, ProbeServices, adopted_from


def pod_probes(
    services: PodServices, pod: Pod, wake: Callable[[], None], status: PodStatus | None
) -> PodProbes:
    """Return the probes of a pod, which continue from the last published status."""
    shared = ProbeServices(
        services.runtime,
        services.events,
        services.clock,
        services.started_at,
        services.exec_orphans,
        services.meter,
        services.notes.finding,
        services.script,
    )
    return PodProbes(shared, pod, wake, adopted_from(status))
