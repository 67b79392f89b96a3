"""Compute the phase of a pod from its containers' statuses. Upstream: getPhase.

A terminal phase comes only once no container may run again, and it never changes.
"""

from __future__ import annotations

from dataclasses import dataclass

from lightkube.models.core_v1 import ContainerStatus, Pod, PodStatus

from kubelet_trio.model import ContainerKind, PodContainer, is_static, pod_containers, spec
from kubelet_trio.pods.plan import restarts_after, was_removed


def last_exit_code(status: ContainerStatus) -> int | None:
    """Return the exit code of a container that has exited, or waits after an exit; else None."""
    for state in (status.state, status.lastState):
        if state is not None and state.terminated is not None:
            return state.terminated.exitCode
        if state is not None and state.running is not None:
            return None
    return None


@dataclass(slots=True)
class _Count:
    """Container counts by state; an ended sidecar counts nowhere."""

    pending_init: int = 0
    failed_init: int = 0  # those that may not run again
    running: int = 0
    waiting: int = 0
    stopped: int = 0
    succeeded: int = 0  # of the stopped ones
    restarting: int = 0  # of the stopped ones: those that are to start again


def pod_phase(pod: Pod, status: PodStatus, *, is_ending: bool, has_initialized: bool) -> str:
    """Return the phase of a pod.

    Args:
        pod: the pod.
        status: a status with a container status for each container of the spec.
        is_ending: no container starts again, whatever the restart policy says.
        has_initialized: a main container was created in the pod's current sandbox.
    """
    count = _count(pod, status)
    if count.failed_init:
        return "Failed"
    if count.waiting or (count.pending_init and not has_initialized):
        return "Pending"
    if count.running:
        return "Running"
    if not count.stopped:
        return "Pending"  # there is a sandbox and nothing in it
    # A static pod that is ended may start again with its file, so its phase must not be terminal.
    if count.restarting and (is_static(pod) or not is_ending):
        return "Running"
    return "Succeeded" if count.stopped == count.succeeded else "Failed"


def _count(pod: Pod, status: PodStatus) -> _Count:
    count = _Count()
    statuses = {
        c.name: c
        for c in (*(status.initContainerStatuses or ()), *(status.containerStatuses or ()))
    }
    for container in pod_containers(pod):
        found = statuses.get(container.spec.name)
        if container.kind is ContainerKind.EPHEMERAL or found is None:
            continue
        if container.kind is ContainerKind.MAIN:
            _count_main(count, pod, container, found)
        elif container.is_sidecar:
            _count_sidecar(count, found)
        else:
            _count_init(count, pod, container, found)
    return count


def _is_running(status: ContainerStatus) -> bool:
    return status.state is not None and status.state.running is not None


def _count_main(count: _Count, pod: Pod, container: PodContainer, status: ContainerStatus) -> None:
    code = last_exit_code(status)
    if _is_running(status):
        count.running += 1
    elif was_removed(status):
        count.stopped += 1
        count.restarting += 1
    elif code is None:
        count.waiting += 1
    else:
        count.stopped += 1
        # One that waits after exit code 0 has not succeeded: it is to start again.
        has_exited = status.state is not None and status.state.terminated is not None
        count.succeeded += code == 0 and has_exited
        count.restarting += restarts_after(container.spec, spec(pod), code)


def _count_sidecar(count: _Count, status: ContainerStatus) -> None:
    if _is_running(status):
        count.running += 1
        count.pending_init += not status.started  # its startup probe has not passed
    elif last_exit_code(status) is None:
        count.waiting += 1
        count.pending_init += 1


def _count_init(count: _Count, pod: Pod, container: PodContainer, status: ContainerStatus) -> None:
    code = last_exit_code(status)
    if _is_running(status) or code is None or was_removed(status):
        count.pending_init += 1
    elif code != 0:
        if restarts_after(container.spec, spec(pod), code):
            count.pending_init += 1
        else:
            count.failed_init += 1
