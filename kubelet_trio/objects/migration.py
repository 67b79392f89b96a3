"""Translate volumes of the clouds' in-tree kinds into CSI volumes. Pure.

No kubelet mounts these kinds itself any more (CSIMigration is locked on): a persistent volume or
an inline volume of such a kind is one of the cloud's CSI driver under another name. Upstream:
csi-translation-lib. What only provisioning needs (storage classes, the way back) is left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import msgspec
from lightkube.models.core_v1 import (
    CSIPersistentVolumeSource,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    PersistentVolume,
    PersistentVolumeSpec,
    SecretReference,
    Volume,
    VolumeNodeAffinity,
)
from lightkube.models.meta_v1 import ObjectMeta

_ZONE, _REGION = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"
_OLD = {
    _ZONE: "failure-domain.beta.kubernetes.io/zone",
    _REGION: "failure-domain.beta.kubernetes.io/region",
}
_ZONE_SEPARATOR = "__"  # between the zones of one label
_ONE_NODE, _MANY_READERS, _MANY_NODES = "ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany"

_AWS_VOLUME = re.compile(r"vol-[^/]*")
_AZURE_ACCOUNT = re.compile(r"azure-storage-account-(.+)-secret")
_AZURE_RESOURCE_GROUP = "kubernetes.io/azure-file-resource-group"
# Of a Google disk's handle; the driver fills it in by its own node.
_UNSPECIFIED = "UNSPECIFIED"
_PORTWORX_SECRET = "openstorage.io/auth-secret-name"
_PORTWORX_SECRET_NAMESPACE = "openstorage.io/auth-secret-namespace"


@dataclass(frozen=True, slots=True)
class _Context:
    """What a translation depends on, apart from the source itself."""

    name: str  # of the persistent volume, or of the pod's volume
    namespace: str  # of the pod; "" for a persistent volume
    meta: ObjectMeta  # of the persistent volume; empty for an inline one
    claim_namespace: str = ""


@dataclass(frozen=True, slots=True)
class InTreeKind:
    """A kind of volume that a CSI driver has taken over."""

    plugin: str  # the in-tree plugin's name
    driver: str  # the CSI driver's name
    source: Callable[[Any, _Context], CSIPersistentVolumeSource]
    topology: Mapping[str, str]  # the driver's label of a node, by Kubernetes' own


def migrated_persistent(volume: PersistentVolume) -> PersistentVolume:
    """Return a persistent volume as the CSI volume that it is; others unchanged.

    Raises ValueError if it cannot be translated.
    """
    spec, meta = volume.spec or PersistentVolumeSpec(), volume.metadata or ObjectMeta()
    kind = next((kind for kind in IN_TREE if getattr(spec, kind) is not None), None)
    if kind is None:
        return volume
    claim = spec.claimRef
    context = _Context(meta.name or "", "", meta, (claim.namespace or "") if claim else "")
    in_tree = IN_TREE[kind]
    changes: dict[str, Any] = {
        kind: None,
        "csi": _translated(in_tree, getattr(spec, kind), context),
        "nodeAffinity": _affinity(spec.nodeAffinity, meta.labels or {}, in_tree.topology),
    }
    if kind == "gcePersistentDisk":
        changes["accessModes"] = _google_modes(spec.accessModes)
    return msgspec.structs.replace(volume, spec=msgspec.structs.replace(spec, **changes))


def migrated_inline(volume: Volume, namespace: str) -> PersistentVolume | None:
    """Return the CSI volume of a pod's inline volume, as a persistent one; None for other kinds.

    Its name is unique for the disk, and may have slashes. Raises ValueError if it cannot be
    translated.

    Args:
        volume: the pod's volume.
        namespace: the pod's.
    """
    kind = next((kind for kind in IN_TREE if getattr(volume, kind) is not None), None)
    if kind is None:
        return None
    in_tree, source = IN_TREE[kind], getattr(volume, kind)
    csi = _translated(in_tree, source, _Context(volume.name, namespace, ObjectMeta()))
    mode = _ONE_NODE
    if kind == "azureFile":
        mode = _MANY_NODES
    elif kind in ("gcePersistentDisk", "portworxVolume") and source.readOnly:
        mode = _MANY_READERS
    # Azure's handles are long and unique by themselves. Google's handle begins with places that
    # are not known, so the volume is named after the disk alone.
    last = source.pdName if kind == "gcePersistentDisk" else csi.volumeHandle
    name = last if kind in ("azureDisk", "azureFile") else f"{in_tree.driver}-{last}"
    return PersistentVolume(
        metadata=ObjectMeta(name=name),
        spec=PersistentVolumeSpec(csi=csi, accessModes=[mode], volumeMode="Filesystem"),
    )


def _translated(
    in_tree: InTreeKind, source: object, context: _Context
) -> CSIPersistentVolumeSource:
    try:
        return in_tree.source(source, context)
    except ValueError as exc:
        raise ValueError(f"failed to translate in-tree pv to CSI: {exc}") from exc


def _aws(source: Any, _context: _Context) -> CSIPersistentVolumeSource:
    try:
        handle = _aws_handle(source.volumeID)
    except ValueError as exc:
        raise ValueError(f"failed to translate Kubernetes ID to EBS Volume ID {exc}") from exc
    return CSIPersistentVolumeSource(
        driver="ebs.csi.aws.com",
        volumeHandle=handle,
        readOnly=bool(source.readOnly),
        fsType=source.fsType,
        volumeAttributes={"partition": str(source.partition or 0)},
    )


def _aws_handle(volume: str) -> str:
    """Return the id of `aws://<zone>/<id>`; a bare id unchanged."""
    if not volume.startswith("aws://"):
        return volume
    name = urlsplit(volume).path.strip("/")
    if not _AWS_VOLUME.fullmatch(name):
        raise ValueError(f"Invalid format for AWS volume ({volume})")
    return name


def _azure_disk(source: Any, _context: _Context) -> CSIPersistentVolumeSource:
    if source.kind is not None and source.kind.lower() != "managed":
        raise ValueError(f"kind({source.kind}) is not supported in csi migration")
    attributes = {"kind": "Managed"}
    if source.cachingMode:
        attributes["cachingmode"] = source.cachingMode
    if source.fsType is not None:
        attributes["fstype"] = source.fsType
    return CSIPersistentVolumeSource(
        driver="disk.csi.azure.com",
        volumeHandle=source.diskURI,
        readOnly=bool(source.readOnly),
        fsType=source.fsType,
        volumeAttributes=attributes,
    )


def _azure_file(source: Any, context: _Context) -> CSIPersistentVolumeSource:
    found = _AZURE_ACCOUNT.search(source.secretName)
    account = found[1] if found else source.secretName
    named = getattr(source, "secretNamespace", None)
    namespace = context.namespace or (context.claim_namespace if named is None else named)
    if not namespace:
        raise ValueError("could not find a secret namespace in PersistentVolumeSource or ClaimRef")
    group = (context.meta.annotations or {}).get(_AZURE_RESOURCE_GROUP, "")
    return CSIPersistentVolumeSource(
        driver="file.csi.azure.com",
        volumeHandle="#".join((group, account, source.shareName, context.name, namespace)),
        readOnly=bool(source.readOnly),
        volumeAttributes={"sharename": source.shareName},
        nodeStageSecretRef=SecretReference(name=source.secretName, namespace=namespace),
    )


def _cinder(source: Any, _context: _Context) -> CSIPersistentVolumeSource:
    return CSIPersistentVolumeSource(
        driver="cinder.csi.openstack.org",
        volumeHandle=source.volumeID,
        readOnly=bool(source.readOnly),
        fsType=source.fsType,
        volumeAttributes={},
    )


def _google(source: Any, context: _Context) -> CSIPersistentVolumeSource:
    labels = context.meta.labels or {}
    label = labels.get(_OLD[_ZONE]) or labels.get(_ZONE) or ""
    zones = label.split(_ZONE_SEPARATOR)
    if len(zones) > 1:
        place = f"regions/{_google_region(zones)}"
    else:
        place = f"zones/{zones[0] or _UNSPECIFIED}"
    return CSIPersistentVolumeSource(
        driver="pd.csi.storage.gke.io",
        volumeHandle=f"projects/{_UNSPECIFIED}/{place}/disks/{source.pdName}",
        readOnly=bool(source.readOnly),
        fsType=source.fsType,
        volumeAttributes={"partition": str(source.partition or "")},
    )


def _google_region(zones: Iterable[str]) -> str:
    """Return the region of zones such as `us-central1-a`. Raises ValueError if it is not one."""
    regions = set()
    for zone in zones:
        parts = zone.split("-")
        if len(parts) != 3:
            raise ValueError(
                "failed to get region from zones: zone in unexpected format, expected: "
                f"{{locale}}-{{region}}-{{zone}}, got: {zone}"
            )
        regions.add("-".join(parts[:2]))
    if len(regions) != 1:
        raise ValueError(
            "failed to get region from zones: multiple or no regions gotten from zones, got: "
            f"{', '.join(sorted(regions))}"
        )
    return regions.pop()


def _google_modes(modes: Iterable[str] | None) -> list[str] | None:
    """Return access modes that the driver accepts.

    The in-tree plugin never checked them, and attached every writable disk to one node.
    """
    if modes is None:
        return None
    return [_MANY_READERS if set(modes) == {_MANY_READERS} else _ONE_NODE]


def _vsphere(source: Any, _context: _Context) -> CSIPersistentVolumeSource:
    policy = source.storagePolicyName
    return CSIPersistentVolumeSource(
        driver="csi.vsphere.vmware.com",
        volumeHandle=source.volumePath,
        fsType=source.fsType,
        volumeAttributes={"storagepolicyname": policy} if policy else {},
    )


def _portworx(source: Any, context: _Context) -> CSIPersistentVolumeSource:
    notes, secret = context.meta.annotations or {}, None
    if _PORTWORX_SECRET in notes and _PORTWORX_SECRET_NAMESPACE in notes:
        secret = SecretReference(
            name=notes[_PORTWORX_SECRET], namespace=notes[_PORTWORX_SECRET_NAMESPACE]
        )
    return CSIPersistentVolumeSource(
        driver="pxd.portworx.com",
        volumeHandle=source.volumeID,
        fsType=source.fsType,
        volumeAttributes={},
        controllerPublishSecretRef=secret,
        nodeStageSecretRef=secret,
        nodePublishSecretRef=secret,
        controllerExpandSecretRef=secret,
        nodeExpandSecretRef=secret,
    )


def _affinity(
    affinity: VolumeNodeAffinity | None, labels: Mapping[str, str], topology: Mapping[str, str]
) -> VolumeNodeAffinity | None:
    """Return the affinity in the driver's labels; a volume without one has it from its labels."""
    if not topology:
        return affinity
    terms = list(affinity.required.nodeSelectorTerms) if affinity and affinity.required else []
    keys = {each.key for term in terms for each in term.matchExpressions or ()}
    is_old = _has_old_labels(keys, labels)
    for own, drivers in topology.items():
        key = _OLD[own] if is_old else own
        if key in keys:
            terms = [_renamed(term, key, drivers) for term in terms]
        elif labels.get(key):
            terms = _with_values(terms, drivers, labels[key])
    # Nodes may no longer have the old label of their region.
    if is_old and _REGION not in topology:
        terms = [_renamed(term, _OLD[_REGION], _REGION) for term in terms]
    return VolumeNodeAffinity(NodeSelector(terms)) if terms else affinity


def _has_old_labels(keys: Container[str], labels: Container[str]) -> bool:
    """Whether a volume names its zone by the label from before Kubernetes 1.17."""
    for found in (keys, labels):
        if _ZONE in found:
            return False
        if _OLD[_ZONE] in found:
            return True
    return False


def _renamed(term: NodeSelectorTerm, key: str, new: str) -> NodeSelectorTerm:
    expressions = [
        msgspec.structs.replace(each, key=new) if each.key == key else each
        for each in term.matchExpressions or ()
    ]
    return msgspec.structs.replace(term, matchExpressions=expressions)


def _with_values(terms: list[NodeSelectorTerm], key: str, label: str) -> list[NodeSelectorTerm]:
    values = sorted({zone.strip() for zone in label.split(_ZONE_SEPARATOR)} - {""})
    if not values:
        return terms
    new = NodeSelectorRequirement(key=key, operator="In", values=values)
    return [
        msgspec.structs.replace(term, matchExpressions=[*(term.matchExpressions or ()), new])
        for term in terms or [NodeSelectorTerm()]
    ]


# By the field of a Volume or of a PersistentVolumeSpec.
IN_TREE: Mapping[str, InTreeKind] = {
    "awsElasticBlockStore": InTreeKind(
        "kubernetes.io/aws-ebs", "ebs.csi.aws.com", _aws, {_ZONE: "topology.ebs.csi.aws.com/zone"}
    ),
    "azureDisk": InTreeKind("kubernetes.io/azure-disk", "disk.csi.azure.com", _azure_disk, {}),
    "azureFile": InTreeKind("kubernetes.io/azure-file", "file.csi.azure.com", _azure_file, {}),
    "cinder": InTreeKind(
        "kubernetes.io/cinder",
        "cinder.csi.openstack.org",
        _cinder,
        {_ZONE: "topology.cinder.csi.openstack.org/zone"},
    ),
    "gcePersistentDisk": InTreeKind(
        "kubernetes.io/gce-pd", "pd.csi.storage.gke.io", _google, {_ZONE: "topology.gke.io/zone"}
    ),
    "portworxVolume": InTreeKind(
        "kubernetes.io/portworx-volume", "pxd.portworx.com", _portworx, {}
    ),
    "vsphereVolume": InTreeKind(
        "kubernetes.io/vsphere-volume",
        "csi.vsphere.vmware.com",
        _vsphere,
        {_ZONE: "topology.csi.vmware.com/zone", _REGION: "topology.csi.vmware.com/region"},
    ),
}
