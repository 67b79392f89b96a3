"""Decide when a pod needs a new sandbox, and which containers start in it.

Upstream: PodSandboxChanged, and computePodActions' rules for a changed sandbox.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from lightkube.models.core_v1 import Pod

from kubelet_trio.model import (
    ContainerId,
    ContainerKind,
    ContainerState,
    PodContainer,
    RuntimePod,
    SandboxRecord,
    pod_containers,
    spec,
)
from kubelet_trio.pods.plan.init_containers import has_succeeded
from kubelet_trio.pods.plan.restarts import (
    KILLED_EXIT_CODE,
    exit_code,
    is_restartable,
    restarts_after,
    should_start,
)


def current_sandbox(pod: Pod, observed: RuntimePod) -> SandboxRecord | None:
    """Return the sandbox that the pod's containers belong in, None if a new one is needed.

    It is the newest. It must be ready, the only ready one, in the network namespace that the
    pod asks for, and, off the host's network, have an address.
    """
    if not observed.sandboxes or sum(s.ready for s in observed.sandboxes) > 1:
        return None
    newest = observed.sandboxes[0]
    on_host = bool(spec(pod).hostNetwork)
    if not newest.ready or newest.host_network != on_host:
        return None
    return newest if newest.ips or on_host else None


def next_attempt(observed: RuntimePod) -> int:
    """Return the attempt of the pod's next sandbox: 0 for the first."""
    return max((s.attempt + 1 for s in observed.sandboxes), default=0)


def mains_for_new_sandbox(
    pod: Pod,
    observed: RuntimePod,
    ended: Mapping[str, int],
    restarting: Collection[ContainerId] = (),
) -> list[PodContainer]:
    """Return the main containers that start in a new sandbox; none: the pod is finished.

    Args:
        pod: the pod.
        observed: what the runtime reports of it.
        ended: exit codes by name of containers that ran, for those without a record.
        restarting: instances that were stopped to start again.
    """
    mains = [c for c in pod_containers(pod) if c.kind is ContainerKind.MAIN]
    ran = any(c.state is not ContainerState.CREATED for c in observed.containers)
    if not ended and not (observed.sandboxes and ran):
        return mains  # nothing of it has run yet: it starts whatever its policy
    if not any(is_restartable(c.spec, spec(pod)) for c in mains):
        # The Go kubelet leaves such a pod Pending for ever.
        return []
    if _has_failed_init(pod, observed) or has_lost_init(pod, observed, ended):
        return []
    return [
        c
        for c in mains
        # What runs now is stopped with the old sandbox.
        if (_is_running(observed, c) and restarts_after(c.spec, spec(pod), KILLED_EXIT_CODE))
        or should_start(pod, c.spec, observed, ended, restarting)
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
    """Return whether an init container has failed for good, or will when its sandbox stops."""
    for container in _ordinary_inits(pod):
        latest = observed.latest(container.spec.name)
        if latest is None or latest.state is ContainerState.CREATED or has_succeeded(latest):
            continue
        if not restarts_after(container.spec, spec(pod), exit_code(latest) or KILLED_EXIT_CODE):
            return True
    return False


def _is_running(observed: RuntimePod, container: PodContainer) -> bool:
    latest = observed.latest(container.spec.name)
    return latest is not None and latest.state is ContainerState.RUNNING


def _ordinary_inits(pod: Pod) -> list[PodContainer]:
    return [c for c in pod_containers(pod) if c.kind is ContainerKind.INIT and not c.is_sidecar]
