"""Decide what a restart by hand restarts, or why it does not."""

from __future__ import annotations

from lightkube.models.core_v1 import Pod

from kubelet_trio.model import (
    ContainerId,
    ContainerKind,
    ContainerState,
    RuntimePod,
    metadata,
    pod_containers,
    spec,
)
from kubelet_trio.pods.plan import restarts_when_killed


class RestartRefusedError(ValueError):
    """Nothing is restarted; the text says why."""


def instances_to_restart(
    pod: Pod, observed: RuntimePod, name: str, *, is_ending: bool
) -> frozenset[ContainerId]:
    """Return the newest instances of a container, or with "" of all main containers and sidecars.

    Raises `RestartRefusedError`: the pod is ending, has not started, or its policy is Never.
    """
    if is_ending:
        raise RestartRefusedError("the pod is ending or has ended")
    whole = [
        c
        for c in pod_containers(pod)
        if c.kind is ContainerKind.MAIN
        or (c.kind is ContainerKind.INIT and c.spec.restartPolicy == "Always")
    ]
    chosen = [c.spec for c in whole if c.spec.name == name or not name]
    if not chosen:
        known = ", ".join(c.spec.name for c in whole)
        raise RestartRefusedError(
            f'pod "{metadata(pod).name}" has no container "{name}" that can be restarted: '
            f"its main containers and sidecars are {known}"
        )
    # As for a failed liveness probe: what never restarts would only be killed.
    if once := [c.name for c in chosen if not restarts_when_killed(c, spec(pod))]:
        raise RestartRefusedError(
            f"restartPolicy Never: {', '.join(once)} may run only once; "
            "to run the pod again, delete it and create it anew"
        )
    records = [record for c in chosen if (record := observed.latest(c.name)) is not None]
    known_states = (ContainerState.RUNNING, ContainerState.EXITED)
    found = frozenset(record.id for record in records if record.state in known_states)
    if not found:
        raise RestartRefusedError("none of its containers has started yet")
    return found
