"""Turns the runtime's status messages into the records that decisions use."""

from __future__ import annotations

from kubelet_trio.containers.labels import CONTAINER_NAME, RESTART_COUNT, container_info
from kubelet_trio.containers.stop_signals import api_stop_signal
from kubelet_trio.cri import v1
from kubelet_trio.model import (
    CONFIG_SOURCE,
    ConfiguredResources,
    ContainerId,
    ContainerRecord,
    ContainerState,
    ImageMount,
    SandboxId,
    SandboxRecord,
)

_STATES = {  # by CRI's names
    "CONTAINER_CREATED": ContainerState.CREATED,
    "CONTAINER_RUNNING": ContainerState.RUNNING,
    "CONTAINER_EXITED": ContainerState.EXITED,
}


def container_state(state: v1.ContainerState) -> ContainerState:
    """Return the state of a record; a value that CRI does not define is UNKNOWN."""
    return _STATES.get(state.name or "", ContainerState.UNKNOWN)


def container_record(
    status: v1.ContainerStatus, sandbox_id: SandboxId, *, pid: int = 0
) -> ContainerRecord:
    """Return the record of one container instance.

    `image_id` is the image's reference by digest, as API statuses show it.
    """
    state = container_state(status.state)
    # As the Go kubelet, take exit code, reason and message from an exited container only.
    exited = state is ContainerState.EXITED
    info = container_info(status.annotations)
    return ContainerRecord(
        id=ContainerId(status.id),
        name=_name(status.labels, status.metadata),
        sandbox_id=sandbox_id,
        state=state,
        attempt=_attempt(status.annotations, status.metadata, info.restart_count),
        created_at=_seconds(status.created_at),
        started_at=0.0 if state is ContainerState.CREATED else _seconds(status.started_at),
        finished_at=_seconds(status.finished_at) if exited else 0.0,
        exit_code=status.exit_code if exited else 0,
        reason=status.reason if exited else "",
        message=status.message if exited else "",
        image=status.image.image if status.image is not None else "",
        image_id=status.image_ref or status.image_id,
        hash=info.hash,
        log_path=status.log_path,
        termination_message_path=_host_path(status, info.termination_message_path),
        annotations=dict(status.annotations),
        user=_user(status.user),
        pid=pid,
        resources=_resources(status.resources),
        stop_signal=api_stop_signal(status.stop_signal),
        image_mounts=tuple(
            ImageMount(m.container_path, m.image.image, m.image.image_ref)
            for m in status.mounts
            if m.image is not None
        ),
    )


def sandbox_record(status: v1.PodSandboxStatus) -> SandboxRecord:
    """Return the record of one sandbox; on the host's network it has no IPs."""
    host_network = _on_host_network(status)
    return SandboxRecord(
        id=SandboxId(status.id),
        ready=status.state == v1.PodSandboxState.SANDBOX_READY,
        attempt=status.metadata.attempt if status.metadata is not None else 0,
        created_at=_seconds(status.created_at),
        host_network=host_network,
        ips=() if host_network else _ips(status.network),
        source=status.annotations.get(CONFIG_SOURCE, ""),
        handler=status.runtime_handler,
    )


def _name(labels: dict[str, str], metadata: v1.ContainerMetadata | None) -> str:
    return labels.get(CONTAINER_NAME) or (metadata.name if metadata is not None else "")


def _attempt(
    annotations: dict[str, str], metadata: v1.ContainerMetadata | None, annotated: int
) -> int:
    if RESTART_COUNT in annotations or metadata is None:
        return annotated
    return metadata.attempt


def _host_path(status: v1.ContainerStatus, container_path: str) -> str:
    """Return the host path of the container's termination message file; "" if it is not mounted."""
    if not container_path:
        return ""
    return next((m.host_path for m in status.mounts if m.container_path == container_path), "")


def _user(user: v1.ContainerUser | None) -> tuple[int, int, tuple[int, ...]] | None:
    if user is None or user.linux is None:
        return None
    return user.linux.uid, user.linux.gid, tuple(user.linux.supplemental_groups)


def _resources(resources: v1.ContainerResources | None) -> ConfiguredResources | None:
    # Not reported by containerd before 1.6.9, nor for containers that such a version created.
    if resources is None or resources.linux is None:
        return None
    linux = resources.linux
    return ConfiguredResources(
        cpu_shares=linux.cpu_shares,
        cpu_quota=linux.cpu_quota,
        cpu_period=linux.cpu_period,
        memory_limit=linux.memory_limit_in_bytes,
    )


def _on_host_network(status: v1.PodSandboxStatus) -> bool:
    namespaces = status.linux.namespaces if status.linux is not None else None
    options = namespaces.options if namespaces is not None else None
    return options is not None and options.network == v1.NamespaceMode.NODE


def _ips(network: v1.PodSandboxNetworkStatus | None) -> tuple[str, ...]:
    if network is None:
        return ()
    return tuple(ip for ip in (network.ip, *(more.ip for more in network.additional_ips)) if ip)


def _seconds(nanoseconds: int) -> float:
    # "Never" is 0, or negative from some runtimes.
    return nanoseconds / 1e9 if nanoseconds > 0 else 0.0
