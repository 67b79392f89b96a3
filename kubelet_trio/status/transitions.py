"""Finds illegal transitions of a pod's status: pure.

They are not sent, because the API server would refuse them every time. Source:
checkContainerStateTransition in status/status_manager.go; for ephemeral containers and for a
container's own restart policy ValidatePodStatusUpdate in the API server.
"""

from __future__ import annotations

from collections.abc import Iterable

from lightkube.models.core_v1 import (
    Container,
    ContainerStateTerminated,
    ContainerStatus,
    EphemeralContainer,
    PodSpec,
    PodStatus,
)

from kubelet_trio.model import TERMINAL_PHASES, could_restart_all


def illegal_transition(before: PodStatus, after: PodStatus, spec: PodSpec) -> str | None:
    """Return why a status may not follow another, or None if it may."""
    if before.phase in TERMINAL_PHASES and after.phase not in TERMINAL_PHASES:
        return f"pod attempted illegal transition from phase {before.phase} to {after.phase}"
    parts: tuple[tuple[str, Iterable[Container | EphemeralContainer]], ...] = (
        ("containerStatuses", spec.containers or ()),
        ("initContainerStatuses", spec.initContainers or ()),
        ("ephemeralContainerStatuses", spec.ephemeralContainers or ()),
    )
    # RestartAllContainers (KEP-5532) restarts containers that have ended, too.
    any_may = could_restart_all(spec)
    for field, containers in parts:
        by_name = {c.name: c for c in containers}
        now = {status.name: status for status in getattr(after, field) or ()}
        for was in getattr(before, field) or ():
            ended, status = _ended(was), now.get(was.name)
            if ended is None or status is None or _ended(status) is not None:
                continue
            container = by_name.get(was.name)
            if any_may and not isinstance(container, EphemeralContainer):
                continue
            if not _may_restart(container, ended, spec):
                return (
                    f"terminated container {was.name} attempted illegal transition to "
                    "non-terminated state"
                )
    return None


def _ended(status: ContainerStatus) -> ContainerStateTerminated | None:
    return status.state.terminated if status.state is not None else None


def _may_restart(
    container: Container | EphemeralContainer | None,
    ended: ContainerStateTerminated,
    spec: PodSpec,
) -> bool:
    # KEP-277: an ephemeral container is never restarted.
    if isinstance(container, EphemeralContainer):
        return False
    if container is not None and container.restartPolicyRules:
        return True  # the pod's worker has applied the rules
    own = container.restartPolicy if container is not None else None
    policy = own or spec.restartPolicy or "Always"
    return policy == "Always" or (policy == "OnFailure" and ended.exitCode != 0)
