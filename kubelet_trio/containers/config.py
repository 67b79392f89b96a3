"""Turns a container of a pod into its CRI config. Pure.

Everything besides the pod and the node's settings comes in as `ContainerInputs`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from lightkube.models.core_v1 import Pod

from kubelet_trio.containers.env.variables import command_line, container_env, encode_value
from kubelet_trio.containers.errors import ContainerConfigError
from kubelet_trio.containers.labels import container_annotations, container_labels
from kubelet_trio.containers.node import NodeSettings
from kubelet_trio.containers.paths import container_log_path
from kubelet_trio.containers.resources.container import container_resources
from kubelet_trio.containers.security import container_security
from kubelet_trio.cri import v1
from kubelet_trio.model import ContainerId, PodContainer


@dataclass(frozen=True, slots=True)
class ContainerInputs:
    """What a container's config needs besides the pod and the node's settings."""

    restart_count: int = 0
    image_ref: str = ""  # the image service's name of the image
    image_uid: int | None = None  # the image's user, if it is given by number
    image_username: str = ""  # the image's user, if it is given by name
    pod_ips: tuple[str, ...] = ()
    variables: Mapping[str, str] | None = None  # its environment; None: made from `pod` alone
    mounts: tuple[v1.Mount, ...] = ()  # volumes and the hosts file
    devices: tuple[v1.Device, ...] = ()  # block volumes
    termination_log_host_path: str = ""  # the termination message file; empty: none is mounted
    target_container_id: ContainerId | None = None  # of an ephemeral container
    users: v1.UserNamespace | None = None  # the pod's own user namespace, if it has one
    volume_groups: tuple[int, ...] = ()  # supplemental groups that the pod's volumes add


def container_config(
    pod: Pod, container: PodContainer, node: NodeSettings, inputs: ContainerInputs
) -> v1.ContainerConfig:
    """Return the config of one instance of a container. Raises `ContainerConfigError`."""
    spec = container.spec
    variables = inputs.variables
    if variables is None:
        variables = container_env(pod, spec).variables
    command, args = command_line(spec, variables)
    return v1.ContainerConfig(
        metadata=v1.ContainerMetadata(name=spec.name, attempt=inputs.restart_count),
        image=v1.ImageSpec(
            image=inputs.image_ref or spec.image or "", user_specified_image=spec.image or ""
        ),
        command=command,
        args=args,
        working_dir=spec.workingDir or "",
        envs=[
            v1.KeyValue(key=name, value=encode_value(value)) for name, value in variables.items()
        ],
        mounts=_mapped([*inputs.mounts, *_termination_log(container, node, inputs)], inputs.users),
        devices=list(inputs.devices),
        labels=container_labels(pod, spec),
        annotations=container_annotations(pod, container, inputs.restart_count),
        log_path=container_log_path(spec.name, inputs.restart_count),
        stdin=bool(spec.stdin),
        stdin_once=bool(spec.stdinOnce),
        tty=bool(spec.tty),
        linux=_linux(pod, container, node, inputs),
    )


def _termination_log(
    container: PodContainer, node: NodeSettings, inputs: ContainerInputs
) -> list[v1.Mount]:
    path = container.spec.terminationMessagePath
    if not path or not inputs.termination_log_host_path:
        return []
    return [
        v1.Mount(
            container_path=path,
            host_path=inputs.termination_log_host_path,
            selinux_relabel=node.selinux,
        )
    ]


def _mapped(mounts: list[v1.Mount], users: v1.UserNamespace | None) -> list[v1.Mount]:
    """Map the owners of files so that they look the same inside the pod's user namespace."""
    if users is None:
        return mounts
    return [replace(m, uid_mappings=users.uids, gid_mappings=users.gids) for m in mounts]


def _linux(
    pod: Pod, container: PodContainer, node: NodeSettings, inputs: ContainerInputs
) -> v1.LinuxContainerConfig:
    try:
        resources = container_resources(pod, container, node)
    except ValueError as exc:
        raise ContainerConfigError(str(exc)) from exc
    security = container_security(
        pod,
        container,
        node,
        image_uid=inputs.image_uid,
        image_username=inputs.image_username,
        target=inputs.target_container_id,
        users=inputs.users,
        volume_groups=inputs.volume_groups,
    )
    return v1.LinuxContainerConfig(resources=resources, security_context=security)
