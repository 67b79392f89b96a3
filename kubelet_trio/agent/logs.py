"""Wires log rotation to what runs: the child `logs` of `gc`."""

from __future__ import annotations

from collections.abc import Iterator

from kubelet_trio.agent.settings import AgentSettings, Seams
from kubelet_trio.gc import LogRotation, RunningLog
from kubelet_trio.model import ContainerState, Meter, Purpose
from kubelet_trio.pleg import Pleg
from kubelet_trio.supervision import ChildSpec


def log_children(
    settings: AgentSettings, seams: Seams, pleg: Pleg, meter: Meter
) -> tuple[ChildSpec, ...]:
    """Return the child that rotates logs; none where they are not to be rotated."""
    if settings.log_rotation.max_size < 0:
        return ()
    rotation = LogRotation(
        seams.runtime,
        lambda: running_logs(pleg),
        settings.log_rotation,
        seams.clock,
        seams.offload_for(Purpose.GARBAGE),
        meter,
    )
    return (ChildSpec("logs", rotation.run),)


def running_logs(pleg: Pleg) -> Iterator[RunningLog]:
    """Yield the running containers, as last seen, with their logs."""
    for uid in pleg.known_uids:
        for container in pleg.get(uid).containers:
            if container.state is ContainerState.RUNNING:
                yield RunningLog(container.id, container.log_path)
