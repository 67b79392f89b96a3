"""Lookups in a snapshot of pods: the pod and the container that a request names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from http import HTTPStatus

from lightkube.models.core_v1 import Container, ContainerStatus, Pod

from kubelet_trio.model import (
    ContainerId,
    ContainerRecord,
    ContainerState,
    is_static,
    metadata,
    pod_containers,
    pod_uid,
)
from kubelet_trio.server.errors import HttpError, LogUnavailableError, restful_error
from kubelet_trio.server.view import AgentView, KubeletApiView

_WAITING_REASONS = {
    "ErrImagePull": "image can't be pulled",
    "ImagePullBackOff": "trying and failing to pull image",
}


def find_pod(pods: Iterable[Pod], namespace: str, name: str, node_name: str) -> Pod | None:
    """Return the pod of that name; a static pod is also found without its `-<node>` suffix.

    Two pods may have one name while the second replaces the first: the one that is not being
    deleted is returned.
    """
    names = (name, f"{name}-{node_name.lower()}") if node_name else (name,)
    for candidate in names:
        found = [
            pod
            for pod in pods
            if metadata(pod).namespace == namespace and metadata(pod).name == candidate
        ]
        if found:
            return min(found, key=lambda pod: metadata(pod).deletionTimestamp is not None)
    return None


def named_pod(view: AgentView, namespace: str, name: str) -> Pod | None:
    """Return the pod of exactly that name, or None."""
    return find_pod(view.pods.value.values(), namespace, name, "")


def container_spec(pod: Pod, name: str) -> Container | None:
    """Return a main, init or ephemeral container by name, or None."""
    return next((c.spec for c in pod_containers(pod) if c.spec.name == name), None)


def known_pod(view: AgentView, namespace: str, name: str) -> Pod:
    """Return a pod by name. Raises `HttpError` 404, worded as the API server's."""
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
    """Return the id of the container whose log to read. Raises `LogUnavailableError`.

    `container` is its name; `previous` asks for the instance before the current one.

    Source: validateContainerLogStatus in pkg/kubelet/kubelet_pods.go.
    """
    what = f'container "{container}" in pod "{metadata(pod).name}"'
    # From the published status, not from the runtime: it names the instance that kubectl shows.
    status = next((s for s in container_statuses(pod) if s.name == container), None)
    if status is None:
        raise LogUnavailableError(f"{what} is not available")
    ended = status.lastState.terminated if status.lastState else None
    before = ended.containerID if ended else None
    if previous:
        if not before:
            raise LogUnavailableError(f"previous terminated {what} not found")
        return _without_scheme(before)
    state = status.state
    if state and state.running and status.containerID:
        return _without_scheme(status.containerID)
    if state and state.terminated and state.terminated.containerID:
        return _without_scheme(state.terminated.containerID)
    if before:
        return _without_scheme(before)
    if ended or (state and state.terminated):
        raise LogUnavailableError(f"{what} is terminated")
    if state and state.waiting:
        reason = state.waiting.reason or ""
        raise LogUnavailableError(
            f"{what} is waiting to start: {_WAITING_REASONS.get(reason, reason)}"
        )
    raise LogUnavailableError(f"{what} is waiting to start - no logs yet")


def _without_scheme(container_id: str) -> ContainerId:
    """Return the id without the runtime's name: statuses have `containerd://<id>`."""
    return ContainerId(container_id.rpartition("//")[2])


def require_pod(view: KubeletApiView, params: Mapping[str, str]) -> Pod:
    """Return the pod that a path names. Raises `HttpError` 404."""
    pod = named_pod(view, params["namespace"], params["pod"])
    if pod is None:
        raise restful_error(HTTPStatus.NOT_FOUND, "pod does not exist")
    return pod


def running_container(
    view: KubeletApiView, pod: Pod, name: str, uid: str = ""
) -> ContainerRecord | None:
    """Return the running instance of a container; None if the pod has another UID than `uid`."""
    if uid and not is_uid_of(pod, uid):
        return None
    return next(
        (
            container
            for container in view.observed(pod_uid(pod)).of(name)
            if container.state is ContainerState.RUNNING
        ),
        None,
    )


def is_uid_of(pod: Pod, uid: str) -> bool:
    """Return whether a client's UID is the pod's; clients know a static pod by its mirror's UID."""
    return uid == pod_uid(pod) or is_static(pod)
