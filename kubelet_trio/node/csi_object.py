"""The node's CSINode, and what CSI drivers add to its Node: pure.

Source: pkg/volume/csi/nodeinfomanager/nodeinfomanager.go.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Protocol

import msgspec
from lightkube.models.core_v1 import Node
from lightkube.models.meta_v1 import ObjectMeta, OwnerReference
from lightkube.models.storage_v1 import CSINode, CSINodeDriver, CSINodeSpec, VolumeNodeResources

from kubelet_trio.model import JSON_ERRORS
from kubelet_trio.node.errors import CsiNodeError

NODE_ID = "csi.volume.kubernetes.io/nodeid"
MIGRATED_PLUGINS = "storage.alpha.kubernetes.io/migrated-plugins"
# The in-tree plugins whose volumes CSI drivers mount. The scheduler counts their volumes
# against the drivers' limits (migratedPlugins in pkg/volume/csi/csi_plugin.go).
MIGRATED = (
    "kubernetes.io/aws-ebs",
    "kubernetes.io/azure-disk",
    "kubernetes.io/azure-file",
    "kubernetes.io/cinder",
    "kubernetes.io/gce-pd",
    "kubernetes.io/portworx-volume",
    "kubernetes.io/vsphere-volume",
)
_MOST = 2**31 - 1  # the API's int32


class DriverFacts(Protocol):
    """What a CSI driver's NodeGetInfo says about this node."""

    @property
    def name(self) -> str:
        """The driver's name."""
        ...

    @property
    def node_id(self) -> str:
        """The driver's name of this node."""
        ...

    @property
    def max_volumes(self) -> int:
        """The most volumes of the driver that this node can have; 0: no limit."""
        ...

    @property
    def topology(self) -> Mapping[str, str]:
        """Where the node is, as labels."""
        ...


def new_csi_node(name: str, node_uid: str, drivers: Iterable[DriverFacts]) -> CSINode:
    """Return the object to create."""
    owner = OwnerReference(apiVersion="v1", kind="Node", name=name, uid=node_uid)
    return CSINode(
        metadata=ObjectMeta(
            name=name,
            ownerReferences=[owner],
            annotations={MIGRATED_PLUGINS: ",".join(MIGRATED)},
        ),
        spec=CSINodeSpec(drivers=[_entry(driver) for driver in drivers]),
    )


def changed_csi_node(
    found: CSINode, install: Iterable[DriverFacts], remove: Collection[str]
) -> CSINode | None:
    """Return the object to replace an existing one; None if it is up to date.

    Entries of other drivers stay: after a start their registrars have not come back yet.
    """
    entries = [entry for entry in found.spec.drivers or () if entry.name not in remove]
    for driver in install:
        wanted = _entry(driver)
        if not any(_is_same(entry, wanted) for entry in entries):
            entries = [entry for entry in entries if entry.name != driver.name]
            entries.append(wanted)
    meta = found.metadata or ObjectMeta()
    annotations = meta.annotations or {}
    is_marked = set(annotations.get(MIGRATED_PLUGINS, "").split(",")) == set(MIGRATED)
    if entries == list(found.spec.drivers or ()) and is_marked:
        return None
    marked = {**annotations, MIGRATED_PLUGINS: ",".join(MIGRATED)}
    return msgspec.structs.replace(
        found,
        metadata=msgspec.structs.replace(meta, annotations=marked),
        spec=msgspec.structs.replace(found.spec, drivers=entries),
    )


def without_replaced(found: CSINode, wanted: CSINode) -> CSINode | None:
    """Return an existing object without the entries that `wanted` changes; None: it changes none.

    An entry's node ID and topology are immutable, as is its count for old API servers: it is
    removed first, and added by the next write.
    """
    names = {entry.name for entry in wanted.spec.drivers or ()}
    same = list(wanted.spec.drivers or ())
    kept = [e for e in found.spec.drivers or () if e in same or e.name not in names]
    if len(kept) == len(found.spec.drivers or ()):
        return None
    return msgspec.structs.replace(found, spec=msgspec.structs.replace(found.spec, drivers=kept))


def owner_of(found: CSINode, name: str, node_uid: str) -> str:
    """Return the UID of the Node that owns a CSINode: `node_uid` if it is this node's own."""
    last = ""
    for owner in (found.metadata.ownerReferences if found.metadata else None) or ():
        if owner.kind == "Node":
            last = owner.uid
            if owner.name == name and owner.uid == node_uid:
                return node_uid
    return last if last != node_uid else ""


def node_patch(
    node: Node, install: Iterable[DriverFacts], remove: Collection[str]
) -> dict[str, Any]:
    """Return the patch of a Node's metadata; empty if it is up to date.

    The annotation has the drivers' names of this node; topology becomes labels, which stay when a
    driver is removed.

    Raises `CsiNodeError`: a label has another value, or the annotation cannot be read.
    """
    meta = node.metadata or ObjectMeta()
    ids = _node_ids((meta.annotations or {}).get(NODE_ID, ""))
    labels, added = meta.labels or {}, dict[str, str]()
    wanted = {name: id_ for name, id_ in ids.items() if name not in remove}
    for driver in install:
        wanted[driver.name] = driver.node_id
        for key, value in driver.topology.items():
            known = {**labels, **added}.get(key, value)
            if known != value:
                raise CsiNodeError(
                    f"detected topology value collision: driver reported {_quoted(key)}:"
                    f"{_quoted(value)} but existing label is {_quoted(key)}:{_quoted(known)}"
                )
            if key not in labels:
                added[key] = value
    patch: dict[str, Any] = {"labels": added} if added else {}
    if wanted != ids:
        text = json.dumps(wanted, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        patch["annotations"] = {NODE_ID: text if wanted else None}
    return {"metadata": patch} if patch else {}


def _node_ids(text: str) -> dict[str, str]:
    if not text:
        return {}
    try:
        return msgspec.json.decode(text, type=dict[str, str] | None) or {}
    except JSON_ERRORS as exc:
        raise CsiNodeError(
            f"failed to parse node's {_quoted(NODE_ID)} annotation value ({_quoted(text)}) "
            f"err={exc}"
        ) from exc


def _entry(driver: DriverFacts) -> CSINodeDriver:
    limit = driver.max_volumes
    return CSINodeDriver(
        name=driver.name,
        nodeID=driver.node_id,
        topologyKeys=sorted(driver.topology) or None,
        allocatable=VolumeNodeResources(count=min(limit, _MOST)) if limit > 0 else None,
    )


def _is_same(entry: CSINodeDriver, wanted: CSINodeDriver) -> bool:
    return (entry.name, entry.nodeID, set(entry.topologyKeys or ()), _count(entry)) == (
        wanted.name,
        wanted.nodeID,
        set(wanted.topologyKeys or ()),
        _count(wanted),
    )


def _count(entry: CSINodeDriver) -> int | None:
    return entry.allocatable.count if entry.allocatable is not None else None


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
