"""Turn a container's `volumeMounts` into the mounts of its CRI config. Blocks (subPath)."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lightkube.models.core_v1 import VolumeMount

from kubelet_trio.containers import ContainerConfigError, sub_path
from kubelet_trio.cri import v1
from kubelet_trio.model import PodContainer, get_logger
from kubelet_trio.volumes.errors import SubPathError, VolumeError
from kubelet_trio.volumes.hung import HungCalls
from kubelet_trio.volumes.layout import sub_path_target
from kubelet_trio.volumes.mounter import Mounter
from kubelet_trio.volumes.spec import AsyncVolumePlugin, VolumePlugin, VolumeSpec
from kubelet_trio.volumes.sub_path import bind_sub_path

log = get_logger()

_PROPAGATION = {  # CRI's names by the API's
    None: "PROPAGATION_PRIVATE",
    "None": "PROPAGATION_PRIVATE",
    "HostToContainer": "PROPAGATION_HOST_TO_CONTAINER",
    "Bidirectional": "PROPAGATION_BIDIRECTIONAL",
}

# Of a subPath that is missing: behind a dangling link, or in a volume that is read-only.
_NOT_MADE = (errno.ENOENT, errno.EROFS)


@dataclass(frozen=True, slots=True)
class MountContext:
    """The inputs for the mounts of one container."""

    pods_dir: Path
    mounter: Mounter
    specs: Mapping[str, VolumeSpec]  # the pod's volumes by name
    plugins: Mapping[str, VolumePlugin | AsyncVolumePlugin]
    variables: Mapping[str, str] = field(default_factory=dict)  # for subPathExpr
    hung: HungCalls = field(default_factory=HungCalls)
    selinux: bool = False
    recursive_read_only: bool = False  # whether the runtime can mount whole trees read-only
    no_image_volumes: str = ""  # why the runtime cannot mount images; "" if it can
    images: Mapping[str, v1.ImageSpec] = field(default_factory=dict)  # pulled, by volume


def container_mounts(container: PodContainer, context: MountContext) -> list[v1.Mount]:
    """Return a container's mounts, in the order of its spec. Raises `VolumeError`."""
    return [
        _mount(container, index, mount, context)
        for index, mount in enumerate(container.spec.volumeMounts or ())
    ]


def _mount(
    container: PodContainer, index: int, mount: VolumeMount, context: MountContext
) -> v1.Mount:
    spec = context.specs.get(mount.name)
    if spec is None:
        raise VolumeError(
            mount.name,
            f'cannot find volume "{mount.name}" to mount into container "{container.spec.name}"',
        )
    inside = _checked_sub_path(mount, context.variables)
    if spec.kind == "image":
        return _image_mount(mount, inside, context)
    plugin = context.plugins[spec.kind]
    path = plugin.path(spec)
    if inside:
        target = sub_path_target(context.pods_dir / spec.uid, spec.name, container.spec.name, index)
        path = _bind(path, inside, target, mount, container, context)
    return v1.Mount(
        # As in the Go kubelet's makeMounts, a relative mountPath is below /.
        container_path=os.path.join("/", mount.mountPath),
        host_path=str(path),
        readonly=bool(mount.readOnly) or spec.read_only or plugin.is_read_only,
        recursive_read_only=_is_recursive_read_only(mount, context),
        selinux_relabel=context.selinux and _is_relabelled(spec, plugin),
        propagation=_propagation(mount),
    )


def _is_relabelled(spec: VolumeSpec, plugin: VolumePlugin | AsyncVolumePlugin) -> bool:
    """Whether the runtime gives the volume's files the container's label (GetAttributes)."""
    # A new label would take a hostPath or an NFS export from its other users; the files of a
    # volume that is mounted with a label have it, and those of a read-only one keep theirs.
    return plugin.managed and not spec.read_only and not spec.selinux_label


def _image_mount(mount: VolumeMount, inside: str, context: MountContext) -> v1.Mount:
    """Return the mount of an image volume (KEP-4639).

    The agent has pulled the image; the runtime mounts it.
    """
    if context.no_image_volumes:
        raise VolumeError(mount.name, f'volume "{mount.name}": {context.no_image_volumes}')
    image = context.images.get(mount.name)
    if image is None:
        # When it was to be pulled, the runtime could not mount images: it was upgraded since.
        raise VolumeError(mount.name, f'the image of volume "{mount.name}" was not pulled')
    return v1.Mount(
        container_path=os.path.join("/", mount.mountPath),
        readonly=True,
        recursive_read_only=_is_recursive_read_only(mount, context),
        image=image,
        image_sub_path=inside,
        propagation=_propagation(mount),
        selinux_relabel=context.selinux,
    )


def _bind(
    path: Path,
    inside: str,
    target: Path,
    mount: VolumeMount,
    container: PodContainer,
    context: MountContext,
) -> Path:
    try:
        bind_sub_path(path, inside, target, context.mounter, context.hung)
    except (OSError, SubPathError) as exc:
        # The error names host paths, so the container's status must not show it.
        log.warning(
            "volume.sub_path_failed",
            volume=mount.name,
            containerName=container.spec.name,
            error=str(exc),
        )
        is_missing = isinstance(exc, OSError) and exc.errno in _NOT_MADE
        what = "create subPath directory" if is_missing else "prepare subPath"
        raise VolumeError(
            mount.name,
            f'failed to {what} for volumeMount "{mount.name}" of container "{container.spec.name}"',
        ) from exc
    return target


def _is_recursive_read_only(mount: VolumeMount, context: MountContext) -> bool:
    # KEP-3857: IfPossible falls back to a plain read-only mount, Enabled must not.
    wanted = mount.recursiveReadOnly or "Disabled"
    if wanted == "Enabled" and not context.recursive_read_only:
        raise VolumeError(
            mount.name,
            f'failed to resolve recursive read-only mode: volume "{mount.name}" requested '
            "recursive read-only mode, but it is not supported by the runtime",
        )
    return wanted != "Disabled" and context.recursive_read_only


def _checked_sub_path(mount: VolumeMount, variables: Mapping[str, str]) -> str:
    try:
        inside = sub_path(mount, variables)
    except ContainerConfigError as exc:
        raise VolumeError(mount.name, str(exc)) from exc
    # Validation checks subPath, but the value of a subPathExpr is only known here.
    if inside.startswith("/"):
        raise VolumeError(mount.name, f"error SubPath `{inside}` must not be an absolute path")
    if ".." in inside.split("/"):
        raise VolumeError(
            mount.name, f"unable to provision SubPath `{inside}`: must not contain '..'"
        )
    return inside


def _propagation(mount: VolumeMount) -> v1.MountPropagation:
    try:
        return v1.MountPropagation[_PROPAGATION[mount.mountPropagation]]
    except KeyError:
        raise VolumeError(
            mount.name, f'invalid MountPropagation mode: "{mount.mountPropagation}"'
        ) from None
