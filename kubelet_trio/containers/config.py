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
from kubelet_trio.containers.node import NodeSettings, without_quota
from kubelet_trio.containers.paths import container_log_path
from kubelet_trio.containers.resources.container import container_resources
from kubelet_trio.containers.security import container_security
from kubelet_trio.containers.stop_signals import cri_stop_signal
from kubelet_trio.cri import v1
from kubelet_trio.managers import NO_SHARE, ContainerShare, DeviceOptions
from kubelet_trio.model import INSTANCE, ContainerId, PodContainer

NO_DEVICES = DeviceOptions()


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
    share: ContainerShare = NO_SHARE  # of the node's CPUs, memory and devices


def container_config(
    pod: Pod, container: PodContainer, node: NodeSettings, inputs: ContainerInputs
) -> v1.ContainerConfig:
    """Return the config of one instance of a container. Raises `ContainerConfigError`."""
    spec = container.spec
    variables = inputs.variables
    if variables is None:
        variables = container_env(pod, spec).variables
    devices = inputs.share.devices or NO_DEVICES
    # As opts.Envs upstream: the container's own variables take precedence, and all can be
    # referred to in its command.
    variables = {**devices.env, **variables}
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
        mounts=[
            *_device_mounts(devices),
            *_mapped([*inputs.mounts, *_termination_log(container, node, inputs)], inputs.users),
        ],
        devices=[*_device_nodes(devices), *inputs.devices],
        CDI_devices=[v1.CdiDevice(name=name) for name in devices.cdi],
        labels=container_labels(pod, spec),
        annotations=_annotations(pod, container, inputs, devices),
        log_path=container_log_path(spec.name, inputs.restart_count),
        stdin=bool(spec.stdin),
        stdin_once=bool(spec.stdinOnce),
        tty=bool(spec.tty),
        linux=_linux(pod, container, node, inputs),
        stop_signal=cri_stop_signal(spec) if node.stop_signals else v1.Signal.RUNTIME_DEFAULT,
    )


def _annotations(
    pod: Pod, container: PodContainer, inputs: ContainerInputs, devices: DeviceOptions
) -> dict[str, str]:
    own = container_annotations(pod, container, inputs.restart_count)
    # A plugin must not make the container another agent's.
    return {k: v for k, v in devices.annotations.items() if k != INSTANCE} | own


def _device_mounts(devices: DeviceOptions) -> list[v1.Mount]:
    return [
        v1.Mount(container_path=m.container_path, host_path=m.host_path, readonly=m.read_only)
        for m in devices.mounts
    ]


def _device_nodes(devices: DeviceOptions) -> list[v1.Device]:
    return [
        v1.Device(
            host_path=node.host_path,
            container_path=node.container_path,
            permissions=node.permissions,
        )
        for node in devices.devices
    ]


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
        limited = without_quota(node) if inputs.share.no_quota else node
        resources = container_resources(pod, container, limited)
    except ValueError as exc:
        raise ContainerConfigError(str(exc)) from exc
    resources.cpuset_cpus = inputs.share.cpuset_cpus
    resources.cpuset_mems = inputs.share.cpuset_mems
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
