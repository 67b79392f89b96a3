"""Counting how containers of a pod ended, each once."""

from __future__ import annotations

from lightkube.models.core_v1 import Pod

from kubelet_trio.model import (
    ContainerId,
    ContainerKind,
    ContainerState,
    Meter,
    RuntimePod,
    pod_containers,
)

# `container_type` of kubelet_started_containers_* and kubelet_terminated_containers_total.
METERED_KINDS = {
    ContainerKind.INIT: "init_container",
    ContainerKind.MAIN: "container",
    ContainerKind.EPHEMERAL: "ephemeral_container",
}


class Endings:
    """The ended containers of one pod that have been counted."""

    def __init__(self, meter: Meter, since: float) -> None:
        """Count in `meter` what ended at `since` (Unix seconds) or later.

        What ended before belongs to an earlier life of the agent, and to its counters.
        """
        self._meter, self._since = meter, since
        self._counted: frozenset[ContainerId] = frozenset()

    def note(self, pod: Pod, observed: RuntimePod) -> None:
        """Count the containers that have ended since the last time."""
        kinds = {c.spec.name: METERED_KINDS[c.kind] for c in pod_containers(pod)}
        ended = {c.id: c for c in observed.containers if c.state is ContainerState.EXITED}
        for container_id, record in ended.items():
            if container_id in self._counted or record.finished_at < self._since:
                continue
            # One that left the spec in an edit of a static pod was a main container, mostly.
            kind = kinds.get(record.name, METERED_KINDS[ContainerKind.MAIN])
            reason = record.reason or ("Completed" if record.exit_code == 0 else "Error")
            labels = (kind, str(record.exit_code), reason)
            self._meter.count("kubelet_terminated_containers_total", labels)
        self._counted = frozenset(ended)
