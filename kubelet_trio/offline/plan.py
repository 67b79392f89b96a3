"""Decides what is to be on disk, given the server's state: pure.

A pod is kept without its status, which the node itself writes and which changes all the time;
only a terminal status is kept. Objects are kept while a pod that has not ended refers to them,
with or without a worker: at a node's shutdown all workers end, and their pods need the objects
when the node is up again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from lightkube.models.core_v1 import (
    Node,
    NodeSpec,
    NodeStatus,
    PersistentVolume,
    PersistentVolumeClaim,
    Pod,
)
from lightkube.models.meta_v1 import ObjectMeta

from kubelet_trio.model import PodUid, is_terminal, metadata
from kubelet_trio.objects import (
    ApiObject,
    ObjectKey,
    persistent_references,
    pod_references,
    volume_key,
)
from kubelet_trio.offline.files import Item, KnownTokens, object_item, pod_item, tokens_item

_CLAIM, _VOLUME = "PersistentVolumeClaim", "PersistentVolume"
# The kinds through which an object of this kind may be needed.
_NEEDS_UNREAD = {
    _VOLUME: (_CLAIM,),
    "CSIDriver": (_CLAIM, _VOLUME),
    "VolumeAttachment": (_CLAIM, _VOLUME),
    "Secret": (_CLAIM, _VOLUME),
}


@dataclass(frozen=True, slots=True)
class ServerState:
    """A snapshot of what the server has returned."""

    pods: Mapping[PodUid, Pod]
    objects: Mapping[ObjectKey, ApiObject | None]  # None: it does not exist
    tokens: Mapping[PodUid, KnownTokens]
    single: Mapping[Item, object]  # the node, and the services


def plan_pass(
    state: ServerState, dirty: Collection[Item], there: Collection[Item]
) -> tuple[dict[Item, Any], list[Item]]:
    """Return the items to write (unless the disk has the same), and those to remove.

    Args:
        state: the server's.
        dirty: items that may have changed since the last pass.
        there: items on disk.
    """
    keys = wanted_objects(state)
    wanted: dict[Item, Any] = {}
    for uid, pod in state.pods.items():
        if (item := pod_item(uid)) in dirty or item not in there:
            wanted[item] = kept_pod(pod)
    for key in keys:
        value = state.objects.get(key)
        item = object_item(key)
        if value is not None and (item in dirty or item not in there):
            wanted[item] = kept_object(value)
    for uid, tokens in state.tokens.items():
        if uid in state.pods and tokens_item(uid) in dirty:
            wanted[tokens_item(uid)] = tokens
    wanted |= {item: value for item, value in state.single.items() if item in dirty}
    return wanted, [item for item in there if _is_gone(item, state, keys)]


def wanted_objects(state: ServerState) -> set[ObjectKey]:
    """Return the objects that running pods refer to, including the volumes of their claims."""
    keys = {
        key for pod in state.pods.values() if not _has_ended(pod) for key in pod_references(pod)
    }
    claims = [state.objects.get(key) for key in keys if key.kind == _CLAIM]
    volumes = {
        volume_key(claim.spec.volumeName)
        for claim in claims
        if isinstance(claim, PersistentVolumeClaim) and claim.spec and claim.spec.volumeName
    }
    node = next((n for pod in state.pods.values() if (n := pod.spec and pod.spec.nodeName)), "")
    behind: set[ObjectKey] = set()  # what the node needs to mount them
    for key in volumes:
        if isinstance(volume := state.objects.get(key), PersistentVolume):
            behind.update(persistent_references(volume, node))
    return keys | volumes | behind


def _is_gone(item: Item, state: ServerState, keys: Collection[ObjectKey]) -> bool:
    if item.kind in ("Pod", "Tokens"):
        return item.name not in state.pods
    if item.kind in ("Services", "Node"):
        return False
    key = ObjectKey(item.kind, *item.name.split("/", 1))
    if key in keys:
        # Only if the server has answered that it does not exist; it may not have been asked yet.
        return key in state.objects and state.objects[key] is None
    # An unread claim may be bound to the volume, and an unread volume may need the driver.
    behind = _NEEDS_UNREAD.get(item.kind, ())
    return not any(k.kind in behind and k not in state.objects for k in keys)


def kept_pod(pod: Pod) -> Pod:
    """Return the part of a pod that is kept."""
    # Both change with every write of anyone, and would cause a write to disk each time.
    meta = msgspec.structs.replace(metadata(pod), resourceVersion=None, managedFields=None)
    status = pod.status if _has_ended(pod) else None
    return msgspec.structs.replace(pod, metadata=meta, status=status)


def kept_object(value: ApiObject) -> ApiObject:
    """Return the part of an object that is kept."""
    meta = value.metadata or ObjectMeta()
    if meta.managedFields is None:
        return value
    return msgspec.structs.replace(
        value, metadata=msgspec.structs.replace(meta, managedFields=None)
    )


def kept_node(node: Node) -> Node:
    """Return the node's labels and taints, for admission, and its attached volumes, if any."""
    meta, spec, status = node.metadata or ObjectMeta(), node.spec or NodeSpec(), node.status
    kept = None
    if status is not None and (status.volumesAttached or status.volumesInUse):
        kept = NodeStatus(volumesAttached=status.volumesAttached, volumesInUse=status.volumesInUse)
    return Node(
        metadata=ObjectMeta(name=meta.name, labels=meta.labels),
        spec=NodeSpec(taints=spec.taints),
        status=kept,
    )


def _has_ended(pod: Pod) -> bool:
    return is_terminal(pod.status)
