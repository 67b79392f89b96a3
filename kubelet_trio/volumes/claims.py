"""PersistentVolumeClaims: find the volume of a claim, and check that the pod may use it.

Checks and texts are the Go kubelet's (pkg/kubelet/volumemanager/populator).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightkube.models.core_v1 import (
    PersistentVolume,
    PersistentVolumeClaim,
    PersistentVolumeSpec,
    Pod,
    Volume,
)
from lightkube.models.meta_v1 import ObjectMeta

from kubelet_trio.containers import make_directories
from kubelet_trio.model import pod_key, pod_uid, remove_tree
from kubelet_trio.objects import (
    ObjectError,
    ObjectView,
    claim_key,
    claim_name,
    persistent_as_csi,
    volume_key,
)
from kubelet_trio.volumes.errors import VolumeStepError, set_up_error
from kubelet_trio.volumes.layout import BLOCK_PLUGINS, MARKER, ready_file
from kubelet_trio.volumes.used import used_names

# The kinds of persistent volume. The manager refuses one without a plugin; all others of the API
# were removed from Kubernetes, or become `csi`.
_PERSISTENT = ("csi", "fc", "flexVolume", "hostPath", "iscsi", "local", "nfs")
_BLOCK = "Block"
_FILESYSTEM = "Filesystem"
_PROTECTION = "kubernetes.io/pvc-protection"
_ONE_POD = "ReadWriteOncePod"
_ONE_POD_PLUGIN = "kubelet-trio~read-write-once-pod"


@dataclass(frozen=True, slots=True)
class ClaimedVolume:
    """The persistent volume of a pod's claim."""

    name: str  # the persistent volume's
    kind: str  # the field of a PersistentVolumeSpec that is set
    source: Any  # that field's value
    claim: PersistentVolumeClaim
    volume: PersistentVolume
    spec: PersistentVolumeSpec  # the persistent volume's
    is_block: bool  # volumeMode Block
    is_migrated: bool  # an in-tree volume of a cloud, translated to CSI
    is_for_one_pod: bool  # ReadWriteOncePod
    deleting: str  # an error text if the claim is being deleted, so that no new pod may use it


def claimed_volume(pod: Pod, volume: Volume, objects: ObjectView) -> ClaimedVolume:
    """Follow a volume of a pod through its claim.

    A volume of a cloud's in-tree kind is returned as one of CSI.

    Raises `ObjectError` or ValueError if it has no volume, or one that the pod may not use.
    """
    key = pod_key(pod)
    wanted = claim_name(key.name, volume) or ""
    where = f"error processing PVC {key.namespace}/{wanted}"
    try:
        claim = _claim(objects, key.namespace, wanted)
    except ObjectError as exc:
        raise ObjectError(f"{where}: {exc}") from exc
    if volume.ephemeral is not None and not _is_owner(pod, claim):
        raise ObjectError(
            f"PVC {key.namespace}/{wanted} was not created for pod {key.namespace}/{key.name} "
            "(pod is not owner)"
        )
    try:
        name, bound = _bound(objects, claim, key.namespace, wanted)
    except ObjectError as exc:
        raise ObjectError(f"{where}: {exc}") from exc
    found = persistent_as_csi(bound)
    behind = found.spec or PersistentVolumeSpec()
    is_block = _is_block(pod, volume.name, behind)
    kind = next((kind for kind in _PERSISTENT if getattr(behind, kind)), None)
    if kind is None:
        raise ValueError(f"{where}: volumes of the type of {name} are not supported")
    if is_block and kind not in BLOCK_PLUGINS:
        raise ValueError(f"{where}: volumes of type {kind}, as {name}, cannot be block devices")
    return ClaimedVolume(
        name,
        kind,
        getattr(behind, kind),
        claim,
        found,
        behind,
        is_block,
        is_migrated=found is not bound,
        # Only as the sole mode: of several, nothing shows which one the pod uses
        # (GenerateMountVolumeFunc in pkg/volume/util/operationexecutor).
        is_for_one_pod=list(behind.accessModes or ()) == [_ONE_POD],
        deleting=f"{where}: PVC is being deleted" if _is_going(claim) else "",
    )


def _claim(objects: ObjectView, namespace: str, name: str) -> PersistentVolumeClaim:
    try:
        claim = objects.get(claim_key(namespace, name), PersistentVolumeClaim)
    except ObjectError as exc:
        raise ObjectError(f"failed to fetch PVC: {exc}") from exc
    # A claim from the manifests directory has no status.
    phase = claim.status.phase if claim.status is not None else None
    if phase not in (None, "Bound") or claim.spec is None or not claim.spec.volumeName:
        raise ObjectError("PVC is not bound")
    return claim


def _bound(
    objects: ObjectView, claim: PersistentVolumeClaim, namespace: str, wanted: str
) -> tuple[str, PersistentVolume]:
    """Return name and object of the volume bound to a claim; its claimRef must name the claim."""
    assert claim.spec is not None
    name = claim.spec.volumeName or ""
    try:
        found = objects.get(volume_key(name), PersistentVolume)
    except ObjectError as exc:
        raise ObjectError(f"failed to fetch PV {name}: {exc}") from exc
    uid, owner = _meta(claim).uid, found.spec.claimRef if found.spec is not None else None
    if owner is None:
        if uid:
            raise ObjectError(
                f"found PV object {name} but it has a nil pv.Spec.ClaimRef indicating it is "
                "not yet bound to the claim"
            )
        return name, found
    # A claim that was deleted and created again under its name must not get the old data.
    if uid and owner.uid != uid:
        raise ObjectError(
            f"found PV object {name} but its pv.Spec.ClaimRef.UID {owner.uid or ''} does not point "
            f"to claim.UID {uid}"
        )
    # A claim from the manifests directory has no UID, so the names must match.
    if not uid and (owner.namespace or "default", owner.name) != (namespace, wanted):
        raise ObjectError(f"PV {name} is bound to {owner.namespace}/{owner.name}")
    return name, found


def _is_owner(pod: Pod, claim: PersistentVolumeClaim) -> bool:
    """Whether the pod's generic ephemeral volume owns the claim; another can have its name."""
    owners = _meta(claim).ownerReferences or ()
    return any(owner.controller and owner.uid == pod_uid(pod) for owner in owners)


def _is_block(pod: Pod, volume: str, found: PersistentVolumeSpec) -> bool:
    """Whether a volume is a device. Raises ValueError if a container uses it as the other mode."""
    # The API server's default, which a volume from the manifests directory lacks.
    mode = found.volumeMode or _FILESYSTEM
    used = used_names(pod)
    for names, field, wanted in (
        (used.mounts, "volumeMounts", _FILESYSTEM),
        (used.devices, "volumeDevices", _BLOCK),
    ):
        if volume in names and mode != wanted:
            raise ValueError(f"volume {volume} has volumeMode {mode}, but is specified in {field}")
    return mode == _BLOCK


def _is_going(claim: PersistentVolumeClaim) -> bool:
    """Whether a claim is being deleted, and nothing holds that up until its pods are gone."""
    meta = _meta(claim)
    # With the finalizer it stays until no pod uses it (getPVCExtractPV in the volume manager's
    # populator).
    return meta.deletionTimestamp is not None and _PROTECTION not in (meta.finalizers or ())


def _meta(claim: PersistentVolumeClaim) -> ObjectMeta:
    return claim.metadata or ObjectMeta()


def take_for_one_pod(pods_dir: Path, uid: str, disk_name: str, *, is_block: bool) -> None:
    """Reserve a ReadWriteOncePod volume for a pod, by a marker on disk.

    The scheduler admits one pod only; this is for pods that bypass it with `nodeName`, as in the
    Go kubelet. Callers hold a lock: two at a time could both find the volume free.

    Raises `VolumeError` if another pod has it, or the disk fails.
    """
    try:
        _take(pods_dir, ready_file(pods_dir / uid, _ONE_POD_PLUGIN, disk_name), uid)
    except OSError as exc:
        raise set_up_error(disk_name, exc, is_block=is_block) from exc
    except ValueError as exc:
        step = VolumeStepError(str(exc), "MapVolume.SetUpDevice" if is_block else "")
        raise set_up_error(disk_name, step, is_block=is_block) from exc


def _take(pods_dir: Path, own: Path, uid: str) -> None:
    if own.exists():
        return
    make_directories(own.parent)
    for other in pods_dir.iterdir():
        if other.name != uid and ready_file(other, _ONE_POD_PLUGIN, own.parent.name).exists():
            raise ValueError(
                "volume uses the ReadWriteOncePod access mode and is already in use by another pod"
            )
    own.touch(MARKER)


def give_back(pod_dir: Path) -> None:
    """Release the pod's ReadWriteOncePod volumes, after their teardown. Raises OSError."""
    remove_tree(pod_dir / "plugins" / _ONE_POD_PLUGIN)
