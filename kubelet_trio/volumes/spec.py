"""A volume of a pod, inline or through a claim, as the plugins see it; and what a plugin is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from lightkube.models.core_v1 import (
    PersistentVolume,
    PersistentVolumeClaim,
    Pod,
    PodSecurityContext,
    Volume,
)

from kubelet_trio.containers import PodFacts
from kubelet_trio.model import metadata, pod_key
from kubelet_trio.model import spec as pod_spec
from kubelet_trio.objects import (
    NO_OBJECTS,
    CredentialBundle,
    ObjectError,
    ObjectView,
    TokenRequest,
    inline_as_csi,
)
from kubelet_trio.volumes.claims import ClaimedVolume, claimed_volume
from kubelet_trio.volumes.persistent import mount_options


@dataclass(frozen=True, slots=True)
class VolumeSpec:
    """A volume with everything that its set-up may depend on: the only input of a plugin."""

    pod: Pod
    name: str  # the volume's name in the pod
    kind: str  # the field of a Volume or of a PersistentVolumeSpec: emptyDir, local, ...
    source: Any  # that field's value
    disk_name: str  # name of its directory: the volume's, or the persistent volume's
    read_only: bool = False
    mount_options: tuple[str, ...] = ()
    objects: ObjectView = NO_OBJECTS
    tokens: Mapping[TokenRequest, str | ObjectError] = field(default_factory=dict, repr=False)
    # Trust anchors and certificates of a projected volume, by the index of the source.
    issued: Mapping[int, bytes | CredentialBundle | ObjectError] = field(
        default_factory=dict, repr=False
    )
    facts: PodFacts = field(default_factory=PodFacts)
    is_for_one_pod: bool = False  # the access mode is ReadWriteOncePod
    deleting: str = ""  # an error text if its claim is being deleted
    is_block: bool = False  # volumeMode Block: containers get a device, not a mount
    claim: PersistentVolumeClaim | None = None  # of a persistent volume
    persistent: PersistentVolume | None = None  # of a claim, or what an inline volume became
    is_migrated: bool = False  # an in-tree volume of a cloud that a CSI driver serves
    # To mount the volume with; "": with none. None: labels do not matter, because the host has no
    # SELinux or the volume's plugin no label mounts.
    selinux_label: str | None = None

    @property
    def namespace(self) -> str:
        return pod_key(self.pod).namespace

    @property
    def fs_group(self) -> int | None:
        """The supplementary group for the pod's volumes."""
        return _security(self.pod).fsGroup

    @property
    def change_policy(self) -> str:
        """Always or OnRootMismatch: for volumes that outlive the pod."""
        return _security(self.pod).fsGroupChangePolicy or "Always"

    @property
    def uid(self) -> str:
        return metadata(self.pod).uid or ""


class VolumePlugin(Protocol):
    """One kind of volume, for the manager. Every method blocks."""

    @property
    def managed(self) -> bool:
        """Whether the volume exists for the pod only, so that SELinux may relabel it."""
        ...

    @property
    def follows_objects(self) -> bool:
        """Whether another `set_up` brings changes of objects into a running pod."""
        ...

    @property
    def is_read_only(self) -> bool:
        """Whether containers may never write to it, whatever the pod's spec says."""
        ...

    def set_up(self, spec: VolumeSpec) -> None:
        """Set the volume up. Idempotent.

        Raises OSError, ValueError, `ObjectError` or `PodConfigError`; a FailedMount event shows the
        text.
        """
        ...

    def is_set_up(self, spec: VolumeSpec) -> bool:
        """Whether an earlier set-up made it usable for containers. Raises OSError."""
        ...

    def path(self, spec: VolumeSpec) -> Path:
        """Return the volume's path on the host."""
        ...


class AsyncVolumePlugin(Protocol):
    """One kind of volume that a driver, a server or a device provides; the manager runs it on Trio.

    Each volume of a pod has a task of its own, so one that hangs delays no other. Calls for one
    pod come from its worker, one at a time; those for two pods with the same volume may overlap.
    Disk, mount table and drivers show what exists: an instance may be new at any time.
    """

    @property
    def managed(self) -> bool:
        """Whether SELinux may relabel the volume for its pod."""
        ...

    @property
    def is_read_only(self) -> bool:
        """Whether containers may never write to it, whatever the pod's spec says."""
        ...

    def republishes(self, spec: VolumeSpec) -> bool:
        """Whether a running pod needs another `set_up` from time to time."""
        ...

    async def set_up(self, spec: VolumeSpec) -> None:
        """Mount the volume, or map its device (`spec.is_block`). Idempotent.

        Raises OSError, ValueError or `ObjectError`; a FailedMount event shows the text.
        """
        ...

    async def is_set_up(self, spec: VolumeSpec) -> bool:
        """Whether an earlier set-up made it usable for containers. Raises OSError."""
        ...

    def path(self, spec: VolumeSpec) -> Path:
        """Return the volume's directory on the host, or the path of its device."""
        ...

    async def tear_down(self, pod_dir: Path) -> None:
        """Undo all volumes of this kind that a pod has on disk, and what no other pod needs then.

        Idempotent. Raises `VolumeError` for the first that failed, after the others.
        """
        ...

    async def unused(self) -> Mapping[str, Callable[[], Awaitable[None]]]:
        """Return what undoes each volume or session that no pod on disk needs, by a name for logs.

        Called after every source has delivered. The functions run side by side, and again if they
        fail; one does nothing if its volume is in use by then. Raises `VolumeError`, as they do.
        """
        ...


@runtime_checkable
class AttachablePlugin(Protocol):
    """An `AsyncVolumePlugin` whose volumes a controller of the cluster attaches to the node."""

    def is_attached(self, spec: VolumeSpec) -> bool:
        """Whether a volume is attached, or nobody has to attach it.

        Raises `ObjectError` or ValueError: nobody knows.
        """
        ...

    async def is_exhausted(self, spec: VolumeSpec) -> bool:
        """Whether attaching failed because no more volumes can be attached to the node.

        Raises `ObjectError` or ValueError.
        """
        ...


@runtime_checkable
class MappingPlugin(Protocol):
    """An `AsyncVolumePlugin` that maps devices into pods."""

    def map_dir(self, spec: VolumeSpec) -> Path:
        """Return the directory of the pods' entries for a device (GetGlobalMapPath)."""
        ...


@runtime_checkable
class GrowingPlugin(Protocol):
    """An `AsyncVolumePlugin` whose volumes have to grow on the node, too, when they are resized."""

    async def grow(self, spec: VolumeSpec, size: int) -> None:
        """Let a volume that is set up grow to `size` bytes. Idempotent.

        Raises `GrowthError`.
        """
        ...


@dataclass(frozen=True, slots=True)
class AsyncKind:
    """A kind of volume whose plugin is loaded when the first such volume appears."""

    kind: str  # the field of a Volume or of a PersistentVolumeSpec
    # Whether a directory of pods/<uid>/volumes or pods/<uid>/volumeDevices is of this kind.
    owns: Callable[[str], bool]
    # Whether the disk shows something for `unused`; blocks, and raises OSError.
    has_remains: Callable[[], bool]
    make: Callable[[], AsyncVolumePlugin]
    # Called before the first pod: announces what an earlier agent has left. Raises OSError.
    restore: Callable[[], Awaitable[None]] | None = None
    # Returns once a driver of that name is registered; None: the kind has no drivers that do.
    wait_driver: Callable[[str], Awaitable[object]] | None = None


def is_claimed(volume: Volume) -> bool:
    """Whether a volume goes through a claim: a named one, or that of an ephemeral volume."""
    return volume_kind(volume) in ("persistentVolumeClaim", "ephemeral")


def volume_kind(volume: Volume) -> str:
    """Return the name of the volume's source field, such as `configMap`."""
    kinds = [f for f in volume.__struct_fields__ if f != "name" and getattr(volume, f) is not None]
    # Without any source it is an emptyDir (SetDefaults_Volume in pkg/apis/core/v1).
    return kinds[0] if kinds else "emptyDir"


def volume_spec(
    pod: Pod,
    volume: Volume,
    facts: PodFacts,
    objects: ObjectView = NO_OBJECTS,
) -> VolumeSpec:
    """Return the spec of a pod's volume, through its claim if it has one.

    A volume of a cloud's in-tree kind becomes one of CSI.

    Raises `ObjectError` or ValueError as `claimed_volume`.
    """
    kind = volume_kind(volume)
    if is_claimed(volume):
        return _claimed(pod, volume, facts, objects)
    source = getattr(volume, kind)
    migrated = inline_as_csi(volume, pod_key(pod).namespace)
    if migrated is not None:
        return _migrated(pod, volume, migrated, facts, objects)
    return VolumeSpec(
        pod,
        volume.name,
        kind,
        source,
        volume.name,
        read_only=bool(getattr(source, "readOnly", False)),
        objects=objects,
        facts=facts,
    )


def _migrated(
    pod: Pod, volume: Volume, behind: PersistentVolume, facts: PodFacts, objects: ObjectView
) -> VolumeSpec:
    """Return the spec of an inline volume that was translated. Raises ValueError."""
    name = (behind.metadata.name if behind.metadata is not None else None) or ""
    # Made from what a user wrote; it becomes a directory's name, with `~` for each slash.
    if name in ("", ".", "..") or "\0" in name:
        raise ValueError(f"{name!r} is no name of a volume")
    # As upstream, `readOnly` of the source is for attaching it; the mount is read-only where the
    # container says so.
    return VolumeSpec(
        pod,
        volume.name,
        "csi",
        behind.spec.csi if behind.spec is not None else None,
        name,
        objects=objects,
        facts=facts,
        persistent=behind,
        is_migrated=True,
    )


def _claimed(pod: Pod, volume: Volume, facts: PodFacts, objects: ObjectView) -> VolumeSpec:
    found = claimed_volume(pod, volume, objects)
    return VolumeSpec(
        pod,
        volume.name,
        found.kind,
        found.source,
        found.name,
        read_only=_is_claimed_read_only(volume) or _is_source_read_only(found),
        mount_options=mount_options(found.volume),
        objects=objects,
        facts=facts,
        is_for_one_pod=found.is_for_one_pod,
        deleting=found.deleting,
        is_block=found.is_block,
        is_migrated=found.is_migrated,
        claim=found.claim,
        persistent=found.volume,
    )


def _is_claimed_read_only(volume: Volume) -> bool:
    claim = volume.persistentVolumeClaim
    return claim is not None and bool(claim.readOnly)


def _is_source_read_only(found: ClaimedVolume) -> bool:
    # Of a CSI volume it is for ControllerPublishVolume alone (CSIPersistentVolumeSource).
    return found.kind != "csi" and bool(getattr(found.source, "readOnly", False))


def _security(pod: Pod) -> PodSecurityContext:
    return pod_spec(pod).securityContext or PodSecurityContext()
