"""From a claim to the volume behind it: who may use it, and how. Pure.

The checks are the Go kubelet's (pkg/kubelet/volumemanager/populator), and so are their texts. A
claim that was deleted and made again under its name does not get the data of the one before.
Documents beside static pods have neither UIDs nor a status: nobody binds them but the text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lightkube.models.core_v1 import (
    PersistentVolume,
    PersistentVolumeClaim,
    PersistentVolumeSpec,
    Pod,
    Volume,
)
from lightkube.models.meta_v1 import ObjectMeta

from kubelet_trio.model import pod_key, pod_uid
from kubelet_trio.objects import ObjectError, ObjectView, claim_key, claim_name, volume_key

# The kinds of persistent volume that there are plugins for.
_PERSISTENT = ("hostPath", "local", "nfs")
_ONE_POD = "ReadWriteOncePod"


@dataclass(frozen=True, slots=True)
class ClaimedVolume:
    """What a claim of a pod leads to."""

    name: str  # the persistent volume's
    kind: str  # the field of a PersistentVolumeSpec that is set
    source: Any  # that field's value
    spec: PersistentVolumeSpec
    is_for_one_pod: bool  # ReadWriteOncePod
    going: str  # why no pod may start to use it: the claim is being deleted; "": one may


def claimed_volume(pod: Pod, volume: Volume, objects: ObjectView) -> ClaimedVolume:
    """Follow a volume of a pod through its claim.

    Raises `ObjectError` or ValueError where it leads nowhere, or to somebody else's.
    """
    key = pod_key(pod)
    wanted = claim_name(key.name, volume) or ""
    where = f"error processing PVC {key.namespace}/{wanted}"
    try:
        claim = _claim(objects, key.namespace, wanted)
        if volume.ephemeral is not None and not _is_owner(pod, claim):
            raise ObjectError(
                f"PVC {key.namespace}/{wanted} was not created for pod {key.namespace}/{key.name} "
                "(pod is not owner)"
            )
        name, found = _bound(objects, claim, key.namespace, wanted)
        _check_mode(volume.name, found)
    except (ObjectError, ValueError) as exc:
        raise ObjectError(f"{where}: {exc}") from exc
    kind = next((kind for kind in _PERSISTENT if getattr(found, kind)), None)
    if kind is None:
        raise ValueError(f"{where}: volumes of the type of {name} are not supported")
    return ClaimedVolume(
        name,
        kind,
        getattr(found, kind),
        found,
        # With more than one mode nobody knows which of them the pod has in mind.
        is_for_one_pod=list(found.accessModes or ()) == [_ONE_POD],
        going=f"{where}: PVC is being deleted" if _meta(claim).deletionTimestamp else "",
    )


def _claim(objects: ObjectView, namespace: str, name: str) -> PersistentVolumeClaim:
    try:
        claim = objects.get(claim_key(namespace, name), PersistentVolumeClaim)
    except ObjectError as exc:
        raise ObjectError(f"failed to fetch PVC: {exc}") from exc
    phase = claim.status.phase if claim.status is not None else None
    if phase not in (None, "Bound") or claim.spec is None or not claim.spec.volumeName:
        raise ObjectError("PVC is not bound")
    return claim


def _bound(
    objects: ObjectView, claim: PersistentVolumeClaim, namespace: str, wanted: str
) -> tuple[str, PersistentVolumeSpec]:
    """Return the volume of a claim, which must say so itself."""
    assert claim.spec is not None
    name = claim.spec.volumeName or ""
    try:
        found = objects.get(volume_key(name), PersistentVolume).spec
    except ObjectError as exc:
        raise ObjectError(f"failed to fetch PV {name}: {exc}") from exc
    found = found or PersistentVolumeSpec()
    uid, owner = _meta(claim).uid, found.claimRef
    if owner is None:
        if uid:
            raise ObjectError(
                f"found PV object {name} but it has a nil pv.Spec.ClaimRef indicating it is "
                "not yet bound to the claim"
            )
        return name, found
    if uid and owner.uid != uid:
        raise ObjectError(
            f"found PV object {name} but its pv.Spec.ClaimRef.UID {owner.uid or ''} does not point "
            f"to claim.UID {uid}"
        )
    if not uid and (owner.namespace or "default", owner.name) != (namespace, wanted):
        raise ObjectError(f"PV {name} is bound to {owner.namespace}/{owner.name}")
    return name, found


def _is_owner(pod: Pod, claim: PersistentVolumeClaim) -> bool:
    """Whether a claim was made for a pod: somebody else's may have the name that its own has."""
    owners = _meta(claim).ownerReferences or ()
    return any(owner.controller and owner.uid == pod_uid(pod) for owner in owners)


def _check_mode(volume: str, found: PersistentVolumeSpec) -> None:
    mode = found.volumeMode or "Filesystem"
    if mode != "Filesystem":
        raise ValueError(f"volume {volume} has volumeMode {mode}, but is specified in volumeMounts")


def _meta(claim: PersistentVolumeClaim) -> ObjectMeta:
    return claim.metadata or ObjectMeta()
