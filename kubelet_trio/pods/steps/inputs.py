"""Gather what a new container's config needs besides pod and node.

These are its environment, its volume mounts, its devices and its own files. If one of them is
missing, the container waits with CreateContainerConfigError.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lightkube.models.core_v1 import Pod

from kubelet_trio.containers import (
    ContainerConfigError,
    ContainerInputs,
    EnvFileValues,
    Environment,
    NodeSettings,
    PodFacts,
    container_env,
    parse_env_file,
)
from kubelet_trio.cri import v1
from kubelet_trio.model import (
    PodContainer,
    pod_addresses,
    pod_key,
    pod_object_ref,
    pod_uid,
    spec,
)
from kubelet_trio.objects import container_references, read_objects
from kubelet_trio.pods.images import EnsuredImage
from kubelet_trio.pods.plan import StartContainer
from kubelet_trio.pods.records.files import PodFiles
from kubelet_trio.pods.services import PodServices
from kubelet_trio.pods.steps.sandbox import RunningSandbox


@dataclass(frozen=True, slots=True)
class ContainerImages:
    """The image that a container runs, and those that it mounts, by volume."""

    own: EnsuredImage
    volumes: Mapping[str, v1.ImageSpec]


async def container_inputs(
    services: PodServices,
    pod: Pod,
    node: NodeSettings,
    *,
    start: StartContainer,
    images: ContainerImages,
    sandbox: RunningSandbox,
) -> ContainerInputs:
    """Gather the inputs of a container's config; `target_container_id` is left to the caller.

    Raises `ContainerConfigError`, `VolumeError`, `RuntimeCallError` and OSError.
    """
    container, ips = start.container, sandbox.ips
    # Before the mounts: `subPathExpr` is expanded with these variables.
    environment = await container_environment(services, pod, container, node, ips)
    mounts = await services.volumes.container_mounts(
        pod,
        container,
        environment.variables,
        handler=services.observer.get(pod_uid(pod)).handler,
        images=images.volumes,
    )
    devices = await services.volumes.container_devices(pod, container)
    user = await _image_user(services, pod, container, images.own)
    own = sandbox.files.get(container.spec.name)
    if own is None:
        make = PodFiles(pod, node).container_files
        own = await services.offload(
            make, container.spec, tuple(ips), start.attempt, counts_logs=start.unrecorded
        )
    return ContainerInputs(
        restart_count=own.attempt,
        image_ref=images.own.ref,
        image_uid=user[0],
        image_username=user[1],
        pod_ips=tuple(ips),
        variables=environment.variables,
        mounts=(*mounts, *own.mounts),
        devices=tuple(devices),
        volume_groups=await services.volumes.groups(pod),
        termination_log_host_path=own.termination_log,
    )


async def _image_user(
    services: PodServices, pod: Pod, container: PodContainer, ensured: EnsuredImage
) -> tuple[int | None, str]:
    """Return the user that an image names, by number or by name; root if it names none.

    None if the pod names the user: then the image's does not matter.
    """
    contexts = (container.spec.securityContext, spec(pod).securityContext)
    if any(context is not None and context.runAsUser is not None for context in contexts):
        return None, ""
    image = ensured.image
    if image is None:
        image = await services.runtime.image_status(v1.ImageSpec(image=ensured.ref))
    if image is None:
        raise ContainerConfigError(f'image "{ensured.ref}" is not on the node any more')
    # CRI's Image: `uid` is set, or `username`, or neither if the image names no user: root.
    if image.uid is not None:
        return image.uid.value, ""
    return (None, image.username) if image.username else (0, "")


async def _env_files(
    services: PodServices, pod: Pod, container: PodContainer
) -> dict[tuple[str, str], EnvFileValues]:
    """Read the files that variables come from, if they exist. Raises `VolumeError`."""
    found: dict[tuple[str, str], EnvFileValues] = {}
    for variable in container.spec.env or ():
        ref = variable.valueFrom.fileKeyRef if variable.valueFrom is not None else None
        if ref is None or (ref.volumeName, ref.path) in found:
            continue
        content = await services.volumes.read_file(pod_uid(pod), ref.volumeName, ref.path)
        if content is not None:
            text = content.decode("utf-8", "surrogateescape")
            found[ref.volumeName, ref.path] = await services.offload(parse_env_file, text)
    return found


async def container_environment(
    services: PodServices,
    pod: Pod,
    container: PodContainer,
    node: NodeSettings,
    ips: Sequence[str],
) -> Environment:
    """Return a container's environment; emit an event for each source with invalid names.

    Raises `ContainerConfigError` and `VolumeError`.
    """
    references = container_references(pod_key(pod).namespace, container.spec)
    objects = await read_objects(services.objects, references, pod_uid(pod))
    service_variables = await services.service_env.variables(pod)
    files = await _env_files(services, pod, container)
    environment = container_env(
        pod, container.spec, pod_facts(pod, node, ips), objects, service_variables, files
    )
    for warning in environment.warnings:
        involved = pod_object_ref(pod)
        services.events.emit(involved, "Warning", "InvalidEnvironmentVariableNames", warning)
    return environment


def pod_facts(pod: Pod, node: NodeSettings, ips: Sequence[str]) -> PodFacts:
    """Return the values for the downward API; on the host's network, with the node's addresses."""
    own = node.host_ips if spec(pod).hostNetwork else pod_addresses(ips, node.host_ips)
    return PodFacts(own, node.host_ips, node.allocatable)
