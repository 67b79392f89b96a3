"""What a new sandbox is worth making for: which containers of a pod have a place in it.

Source: computePodActions' rules for a changed sandbox, and, for what the runtime has no record
of any more, the last reported status, which ends such a pod upstream too.
"""

from __future__ import annotations

from collections.abc import Mapping

from lightkube.models.core_v1 import Pod

from kubelet_trio.model import (
    ContainerKind,
    ContainerState,
    PodContainer,
    RuntimePod,
    pod_containers,
    spec,
)
from kubelet_trio.pods.plan.plan_init import has_succeeded
from kubelet_trio.pods.plan.restart import (
    KILLED,
    exit_code,
    is_restartable,
    restarts_after,
    should_start,
)


def mains_for_new_sandbox(
    pod: Pod, observed: RuntimePod, ended: Mapping[str, int]
) -> list[PodContainer]:
    """Return the main containers that start in a new sandbox; none: the pod is over.

    A pod of which nothing has run yet starts from the beginning, whatever its policy.
    """
    mains = [c for c in pod_containers(pod) if c.kind is ContainerKind.MAIN]
    ran = any(c.state is not ContainerState.CREATED for c in observed.containers)
    if not ended and not (observed.sandboxes and ran):
        return mains
    if not any(is_restartable(c.spec, spec(pod)) for c in mains):
        return []
    if _has_failed_init(pod, observed) or has_lost_init(pod, observed, ended):
        return []
    return [
        c
        for c in mains
        if (_is_running(observed, c) and restarts_after(c.spec, spec(pod), KILLED))
        or should_start(pod, c.spec, observed, ended)
    ]


def has_lost_init(pod: Pod, observed: RuntimePod, ended: Mapping[str, int]) -> bool:
    """Return whether an init container failed for good and its record is gone."""
    for container in _ordinary_inits(pod):
        name = container.spec.name
        code = ended.get(name, 0)
        if code and not observed.of(name) and not restarts_after(container.spec, spec(pod), code):
            return True
    return False


def _has_failed_init(pod: Pod, observed: RuntimePod) -> bool:
    """Return whether an init container failed, or does with its sandbox, for good."""
    for container in _ordinary_inits(pod):
        latest = observed.latest(container.spec.name)
        if latest is None or latest.state is ContainerState.CREATED or has_succeeded(latest):
            continue
        if not restarts_after(container.spec, spec(pod), exit_code(latest) or KILLED):
            return True
    return False


def _is_running(observed: RuntimePod, container: PodContainer) -> bool:
    latest = observed.latest(container.spec.name)
    return latest is not None and latest.state is ContainerState.RUNNING


def _ordinary_inits(pod: Pod) -> list[PodContainer]:
    return [c for c in pod_containers(pod) if c.kind is ContainerKind.INIT and not c.is_sidecar]
