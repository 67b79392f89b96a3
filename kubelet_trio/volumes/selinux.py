"""Which SELinux label a volume is mounted with, by `-o context=` (KEP-1710). Pure.

A mount with a label gives it to all files at once. Without one the container runtime relabels each
file. A label is known only if the containers say at least its level: otherwise the runtime
chooses a random one.

Source: pkg/volume/util/selinux.go, and label.InitLabels in github.com/opencontainers/selinux.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from lightkube.models.core_v1 import (
    PersistentVolume,
    PersistentVolumeSpec,
    Pod,
    PodSecurityContext,
    SecurityContext,
    SELinuxOptions,
)
from lightkube.models.storage_v1 import CSIDriver

from kubelet_trio.model import pod_containers
from kubelet_trio.model import spec as pod_spec
from kubelet_trio.objects import ObjectNotFoundError, csi_driver_key
from kubelet_trio.volumes.errors import ContextError, ManyLabelsError
from kubelet_trio.volumes.spec import VolumeSpec

_ONE_POD = "ReadWriteOncePod"
_RECURSIVE = "Recursive"
# The widest first: a volume counts under one of its modes (getVolumeAccessMode).
_SHORT = {"ReadWriteMany": "RWX", "ReadOnlyMany": "ROX", "ReadWriteOnce": "RWO", _ONE_POD: "RWOP"}
_DEVICES = ("fc", "iscsi")  # in-tree kinds with SupportsSELinuxContextMount
_PREFIX = "context="
# What could end the quoted mount option, or hide in it. No valid context has any of it.
_FORBIDDEN = re.compile(r"[\"\\\s\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class SELinuxContext:
    """A label: `user:role:type:level`; the level is missing without MCS."""

    user: str
    role: str
    type: str
    level: str = ""

    def __str__(self) -> str:
        parts = (self.user, self.role, self.type, self.level)
        return ":".join(part for part in parts if part)


@dataclass(frozen=True, slots=True)
class WantedLabel:
    """The label that a pod wants a volume to have."""

    is_supported: bool  # whether the volume's plugin can mount with a label
    label: str = ""  # "": none


def parse_context(text: str) -> SELinuxContext:
    """Parse a label. Raises `ContextError`."""
    parts = text.split(":", 3)
    if len(parts) < 3 or not all(parts[:3]):
        raise ContextError(f'"{text}" is no SELinux context')
    return SELinuxContext(*parts)


def file_default(contexts: str) -> SELinuxContext | None:
    """Return the label of containers' files, from the policy's `lxc_contexts`.

    None if the policy has no labels for containers. Raises `ContextError`.
    """
    found: dict[str, str] = {}
    for line in contexts.splitlines():
        name, equals, value = line.strip().partition("=")
        if equals and not name.startswith((";", "#")):
            found[name.strip()] = value.strip().strip('"')
    if not found.get("process") or not found.get("file"):
        return None
    return parse_context(found["file"])


def file_label(options: SELinuxOptions, default: SELinuxContext | None) -> str:
    """Return the label of the files for containers with some options; "" if it is not known.

    Args:
        options: of a container's process. Role and type of files are the policy's.
        default: what the policy says; None: it has no labels for containers.

    Raises `ContextError`.
    """
    if default is None or not options.level:
        return ""
    made = str(replace(default, user=options.user or default.user, level=options.level))
    if _FORBIDDEN.search(made):
        raise ContextError(f"{made!r} is no SELinux context")
    return made


def container_options(pod: Pod, volume: str) -> Iterator[SELinuxOptions]:
    """Yield the SELinux options of each container that mounts a volume and has any.

    GetPodVolumeNames: those of a container replace those of its pod, and devices do not count.
    """
    of_pod = _security(pod).seLinuxOptions
    for container in pod_containers(pod):
        own = (container.spec.securityContext or SecurityContext()).seLinuxOptions
        options = own if own is not None else of_pod
        mounts = container.spec.volumeMounts or ()
        if options is not None and any(mount.name == volume for mount in mounts):
            yield options


def wanted_label(spec: VolumeSpec, default: SELinuxContext | None) -> WantedLabel:
    """Return the label that a pod's containers want a volume to be mounted with.

    Whatever the access mode: see `takes_label` (GetMountSELinuxLabel).

    Raises `ContextError`; `ManyLabelsError` if they differ; `ObjectError` if the driver's object
    cannot be read.
    """
    is_supported = has_label_mounts(spec)
    labels = {file_label(options, default) for options in container_options(spec.pod, spec.name)}
    if len(labels) > 1:
        raise ManyLabelsError(sorted(labels))
    if not is_supported or _security(spec.pod).seLinuxChangePolicy == _RECURSIVE:
        return WantedLabel(is_supported)
    return WantedLabel(is_supported, next(iter(labels), ""))


def has_label_mounts(spec: VolumeSpec) -> bool:
    """Whether a volume's plugin can mount with a label (SupportsSELinuxContextMount).

    Raises `ObjectError` if the driver's object cannot be read.
    """
    if spec.kind != "csi":
        return spec.kind in _DEVICES
    try:
        driver = spec.objects.get(csi_driver_key(spec.source.driver), CSIDriver)
    except ObjectNotFoundError:
        return False
    return bool(driver.spec.seLinuxMount)


def takes_label(volume: PersistentVolume | None, *, any_mode: bool) -> bool:
    """Whether a volume may be mounted with a label (VolumeSupportsSELinuxMount).

    Args:
        volume: None: an inline volume, which never has a label.
        any_mode: the gate SELinuxMount; else only volumes that one pod alone can use.
    """
    return volume is not None and (any_mode or _modes(volume) == [_ONE_POD])


def mode_label(volume: PersistentVolume | None) -> str:
    """Return the access mode of a volume, as metrics show it."""
    if volume is None:
        return "inline"
    modes = _modes(volume)
    return next((short for mode, short in _SHORT.items() if mode in modes), "")


def mount_options(options: Sequence[str], label: str | None) -> tuple[str, ...]:
    """Return mount options with that for the label, if there is one (AddSELinuxMountOption)."""
    # Quoted, because of the comma between two categories.
    return (*options, f'{_PREFIX}"{label}"') if label else tuple(options)


def mounted_label(super_options: Iterable[str]) -> str:
    """Return the label that a file system is mounted with, "" if none (GetSELinux).

    Args:
        super_options: of the mount table, split at every comma: also those within a label.
    """
    found = re.search(rf'(?:^|,){_PREFIX}("[^"]*"|[^,]*)', ",".join(super_options))
    return found[1].strip('"') if found is not None else ""


def _modes(volume: PersistentVolume) -> list[str]:
    return list((volume.spec or PersistentVolumeSpec()).accessModes or ())


def _security(pod: Pod) -> PodSecurityContext:
    return pod_spec(pod).securityContext or PodSecurityContext()
