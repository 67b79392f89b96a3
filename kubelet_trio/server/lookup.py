"""Questions about a snapshot of pods: which one is meant, and whose log to read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lightkube.models.core_v1 import Container, ContainerStatus, Pod

from kubelet_trio.model import ContainerId, metadata, pod_containers
from kubelet_trio.server.http import HttpError
from kubelet_trio.server.view import AgentView


class LogUnavailableError(Exception):
    """There is no log to read; the message is what the Go kubelet says."""


def find_pod(pods: Iterable[Pod], namespace: str, name: str, node_name: str) -> Pod | None:
    """Return the pod of that name, with or without the `-<node>` of a static pod.

    Two UIDs may share a name while one follows the other: the one that stays is meant.
    """
    names = (name, f"{name}-{node_name.lower()}") if node_name else (name,)
    for wanted in names:
        found = [
            pod
            for pod in pods
            if metadata(pod).namespace == namespace and metadata(pod).name == wanted
        ]
        if found:
            return min(found, key=lambda pod: metadata(pod).deletionTimestamp is not None)
    return None


def named_pod(view: AgentView, namespace: str, name: str) -> Pod | None:
    """Return the pod of exactly that name, or None; see `find_pod` for two of them."""
    return find_pod(view.pods.value.values(), namespace, name, "")


def container_spec(pod: Pod, name: str) -> Container | None:
    """Return a main, init or ephemeral container by name, or None."""
    return next((c.spec for c in pod_containers(pod) if c.spec.name == name), None)


def known_pod(view: AgentView, namespace: str, name: str) -> Pod:
    """Return a pod by name. Raises `HttpError` 404 in kubectl's words."""
    pod = find_pod(view.pods.value.values(), namespace, name, view.status().node_name)
    if pod is None:
        raise HttpError(404, f'pods "{name}" not found')
    return pod


def container_statuses(pod: Pod) -> Iterator[ContainerStatus]:
    """Yield the statuses of main, init and ephemeral containers."""
    status = pod.status
    if status is not None:
        yield from status.containerStatuses or ()
        yield from status.initContainerStatuses or ()
        yield from status.ephemeralContainerStatuses or ()


def log_container_id(pod: Pod, container: str, *, previous: bool) -> ContainerId:
    """Return the instance whose log is meant. Raises `LogUnavailableError`.

    Source: validateContainerLogStatus in pkg/kubelet/kubelet_pods.go.
    """
    what = f'container "{container}" in pod "{metadata(pod).name}"'
    status = next((s for s in container_statuses(pod) if s.name == container), None)
    if status is None:
        raise LogUnavailableError(f"{what} is not available")
    ended = status.lastState.terminated if status.lastState else None
    before = ended.containerID if ended else None
    if previous:
        if not before:
            raise LogUnavailableError(f"previous terminated {what} not found")
        return _bare(before)
    state = status.state
    if state and state.running and status.containerID:
        return _bare(status.containerID)
    if state and state.terminated and state.terminated.containerID:
        return _bare(state.terminated.containerID)
    if before:
        return _bare(before)
    if ended or (state and state.terminated):
        raise LogUnavailableError(f"{what} is terminated")
    if state and state.waiting:
        raise LogUnavailableError(f"{what} is waiting to start: {_why(state.waiting.reason)}")
    raise LogUnavailableError(f"{what} is waiting to start - no logs yet")


def _why(reason: str | None) -> str:
    known = {
        "ErrImagePull": "image can't be pulled",
        "ImagePullBackOff": "trying and failing to pull image",
    }
    return known.get(reason or "", reason or "")


def _bare(container_id: str) -> ContainerId:
    return ContainerId(container_id.rpartition("//")[2])
