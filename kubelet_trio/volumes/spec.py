"""One volume of a pod as the plugins of this room see it: inline, or through a claim."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lightkube.models.core_v1 import Pod, PodSecurityContext, Volume

from kubelet_trio.containers import PodFacts
from kubelet_trio.model import metadata, pod_key
from kubelet_trio.model import spec as pod_spec
from kubelet_trio.objects import NO_OBJECTS, ObjectError, ObjectView, TokenRequest
from kubelet_trio.volumes.claims import claimed_volume


@dataclass(frozen=True, slots=True)
class VolumeSpec:
    """A volume with all that its set-up may depend on. Plugins read it and nothing else."""

    pod: Pod
    name: str  # the volume's name in the pod
    kind: str  # the field of a Volume or of a PersistentVolumeSpec: emptyDir, local, ...
    source: Any  # that field's value
    disk_name: str  # what its directory is called: its name, or the persistent volume's
    read_only: bool = False
    mount_options: tuple[str, ...] = ()
    objects: ObjectView = NO_OBJECTS
    tokens: Mapping[TokenRequest, str | ObjectError] = field(default_factory=dict)
    facts: PodFacts = field(default_factory=PodFacts)
    is_for_one_pod: bool = False  # a claim's access mode is ReadWriteOncePod
    going: str = ""  # why its claim may not be taken up by a pod that starts

    @property
    def namespace(self) -> str:
        return pod_key(self.pod).namespace

    @property
    def fs_group(self) -> int | None:
        """The group that the pod's volumes shall belong to."""
        return _security(self.pod).fsGroup

    @property
    def change_policy(self) -> str:
        """Always or OnRootMismatch: for volumes that outlive the pod."""
        return _security(self.pod).fsGroupChangePolicy or "Always"

    @property
    def uid(self) -> str:
        return metadata(self.pod).uid or ""


def is_claimed(volume: Volume) -> bool:
    """Whether a volume is what a claim leads to: one of the namespace, or one of its own."""
    return volume_kind(volume) in ("persistentVolumeClaim", "ephemeral")


def volume_kind(volume: Volume) -> str:
    """Return which of a volume's fields is set."""
    kinds = [f for f in volume.__struct_fields__ if f != "name" and getattr(volume, f) is not None]
    return kinds[0] if kinds else "emptyDir"


def volume_spec(
    pod: Pod,
    volume: Volume,
    facts: PodFacts,
    objects: ObjectView = NO_OBJECTS,
    tokens: Mapping[TokenRequest, str | ObjectError] | None = None,
) -> VolumeSpec:
    """Return a pod's volume, followed through its claim.

    Raises `ObjectError` or ValueError where a claim leads nowhere.
    """
    kind = volume_kind(volume)
    if is_claimed(volume):
        return _claimed(pod, volume, facts, objects)
    source = getattr(volume, kind)
    return VolumeSpec(
        pod,
        volume.name,
        kind,
        source,
        volume.name,
        read_only=bool(getattr(source, "readOnly", False)),
        objects=objects,
        tokens=tokens or {},
        facts=facts,
    )


def _claimed(pod: Pod, volume: Volume, facts: PodFacts, objects: ObjectView) -> VolumeSpec:
    found = claimed_volume(pod, volume, objects)
    return VolumeSpec(
        pod,
        volume.name,
        found.kind,
        found.source,
        found.name,
        read_only=bool(_is_claimed_read_only(volume) or getattr(found.source, "readOnly", False)),
        mount_options=tuple(found.spec.mountOptions or ()),
        facts=facts,
        is_for_one_pod=found.is_for_one_pod,
        going=found.going,
    )


def _is_claimed_read_only(volume: Volume) -> bool:
    claim = volume.persistentVolumeClaim
    return claim is not None and bool(claim.readOnly)


def _security(pod: Pod) -> PodSecurityContext:
    return pod_spec(pod).securityContext or PodSecurityContext()
