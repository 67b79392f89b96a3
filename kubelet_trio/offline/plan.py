"""What is to be on disk, given what the server has said: pure.

Of a pod all is kept that says how it is to run; of its status only that it is over, since the
rest is the node's own to say and changes all the time. Objects are kept for as long as a pod
that is not over refers to them, whether or not a worker is at it: at a node's shutdown all
workers end, and what their pods need must be there when it is up again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from lightkube.models.core_v1 import Node, NodeSpec, PersistentVolumeClaim, Pod
from lightkube.models.meta_v1 import ObjectMeta

from kubelet_trio.model import PodUid, is_terminal, metadata
from kubelet_trio.objects import ApiObject, ObjectKey, pod_references, volume_key
from kubelet_trio.offline.files import Item, KnownTokens, object_item, pod_item, tokens_item

_CLAIM, _VOLUME = "PersistentVolumeClaim", "PersistentVolume"


@dataclass(frozen=True, slots=True)
class Said:
    """What the server has said, as one moment's snapshot."""

    pods: Mapping[PodUid, Pod]
    objects: Mapping[ObjectKey, ApiObject | None]  # None: there is none
    tokens: Mapping[PodUid, KnownTokens]
    single: Mapping[Item, object]  # what there is one of: the node, the services


def plan_pass(
    said: Said, dirty: Collection[Item], there: Collection[Item]
) -> tuple[dict[Item, Any], list[Item]]:
    """Return what to write (unless it is there as it is), and what to remove.

    Args:
        said: by the server.
        dirty: what may have changed since the last pass.
        there: on disk.
    """
    keys = wanted_objects(said)
    wanted: dict[Item, Any] = {}
    for uid, pod in said.pods.items():
        if (item := pod_item(uid)) in dirty or item not in there:
            wanted[item] = kept_pod(pod)
    for key in keys:
        value = said.objects.get(key)
        item = object_item(key)
        if value is not None and (item in dirty or item not in there):
            wanted[item] = kept_object(value)
    for uid, tokens in said.tokens.items():
        if uid in said.pods and tokens_item(uid) in dirty:
            wanted[tokens_item(uid)] = tokens
    wanted |= {item: value for item, value in said.single.items() if item in dirty}
    return wanted, [item for item in there if _is_gone(item, said, keys)]


def wanted_objects(said: Said) -> set[ObjectKey]:
    """Return what pods that are not over refer to, the volumes of their claims included."""
    keys = {key for pod in said.pods.values() if not _is_over(pod) for key in pod_references(pod)}
    claims = [said.objects.get(key) for key in keys if key.kind == _CLAIM]
    return keys | {
        volume_key(claim.spec.volumeName)
        for claim in claims
        if isinstance(claim, PersistentVolumeClaim) and claim.spec and claim.spec.volumeName
    }


def _is_gone(item: Item, said: Said, keys: Collection[ObjectKey]) -> bool:
    if item.kind in ("Pod", "Tokens"):
        return item.name not in said.pods
    if item.kind in ("Services", "Node"):
        return False
    key = ObjectKey(item.kind, *item.name.split("/", 1))
    if key in keys:
        # The server may not have been asked yet: only its word that there is none counts.
        return key in said.objects and said.objects[key] is None
    unread = any(k.kind == _CLAIM and k not in said.objects for k in keys)
    return not (item.kind == _VOLUME and unread)  # it may be behind one of these


def kept_pod(pod: Pod) -> Pod:
    """Return what of a pod is kept."""
    meta = msgspec.structs.replace(metadata(pod), resourceVersion=None, managedFields=None)
    status = pod.status if _is_over(pod) else None
    return msgspec.structs.replace(pod, metadata=meta, status=status)


def kept_object(value: ApiObject) -> ApiObject:
    """Return what of an object is kept."""
    meta = value.metadata or ObjectMeta()
    if meta.managedFields is None:
        return value
    return msgspec.structs.replace(
        value, metadata=msgspec.structs.replace(meta, managedFields=None)
    )


def kept_node(node: Node) -> Node:
    """Return what decides which pods may run: labels and taints."""
    meta, spec = node.metadata or ObjectMeta(), node.spec or NodeSpec()
    return Node(
        metadata=ObjectMeta(name=meta.name, labels=meta.labels), spec=NodeSpec(taints=spec.taints)
    )


def _is_over(pod: Pod) -> bool:
    return is_terminal(pod.status)
