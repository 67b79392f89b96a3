"""One volume of a pod as the plugins of this room see it: inline, or through a claim."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

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
    ObjectError,
    ObjectView,
    TokenRequest,
    claim_key,
    volume_key,
)

# The kinds of persistent volume that there are plugins for.
_PERSISTENT = ("hostPath", "local", "nfs")


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
    if kind == "persistentVolumeClaim":
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
    source = volume.persistentVolumeClaim
    assert source is not None
    namespace = pod_key(pod).namespace
    where = f"error processing PVC {namespace}/{source.claimName}"
    try:
        claim = objects.get(claim_key(namespace, source.claimName), PersistentVolumeClaim)
    except ObjectError as exc:
        raise ObjectError(f"{where}: failed to fetch PVC: {exc}") from exc
    name = claim.spec.volumeName if claim.spec is not None else None
    if not name:
        raise ObjectError(f"{where}: PVC is not bound")
    try:
        found = objects.get(volume_key(name), PersistentVolume).spec
    except ObjectError as exc:
        raise ObjectError(f"{where}: failed to fetch PV {name}: {exc}") from exc
    kind = next((k for k in _PERSISTENT if found is not None and getattr(found, k)), None)
    if found is None or kind is None:
        raise ValueError(f"{where}: volumes of the type of {name} are not supported")
    owner = found.claimRef
    if owner is not None and (owner.namespace or "default", owner.name) != (
        namespace,
        source.claimName,
    ):
        raise ObjectError(f"{where}: PV {name} is bound to {owner.namespace}/{owner.name}")
    inner = getattr(found, kind)
    return VolumeSpec(
        pod,
        volume.name,
        kind,
        inner,
        name,
        read_only=bool(source.readOnly or getattr(inner, "readOnly", False)),
        mount_options=tuple(found.mountOptions or ()),
        facts=facts,
    )


def _security(pod: Pod) -> PodSecurityContext:
    return pod_spec(pod).securityContext or PodSecurityContext()
