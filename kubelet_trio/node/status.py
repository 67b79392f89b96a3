"""The node's status: a pure function of what is seen and what was said, and the patch to say it.

Source: nodestatus/setters.go, and PatchNodeStatus in component-helpers/node/util.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from lightkube.models.core_v1 import (
    DaemonEndpoint,
    Node,
    NodeAddress,
    NodeDaemonEndpoints,
    NodeStatus,
)

from kubelet_trio.node.conditions import node_conditions
from kubelet_trio.node.object import is_extended
from kubelet_trio.node.types import NodeIdentity, NodeView

_NAMES_PER_IMAGE = 5
_REQUIRED = ("cpu", "memory", "pods", "ephemeral-storage")
# Lists of the status that a patch merges by a key; all others it replaces.
_KEYED = {"conditions": "type"}


def node_status(identity: NodeIdentity, view: NodeView, before: NodeStatus) -> NodeStatus:
    """Return the status to report; what others own in `before` is kept."""
    capacity = _merged(before.capacity, view.resources.capacity)
    allocatable = _merged(before.allocatable, view.resources.allocatable)
    missing = [name for name in _REQUIRED if name not in capacity]
    not_ready = list(view.not_ready)
    if missing:
        not_ready.append(f"missing node capacity for resources: {', '.join(missing)}")
    return msgspec.structs.replace(
        before,
        addresses=_addresses(identity, view, before.addresses),
        capacity=capacity,
        allocatable=allocatable,
        conditions=node_conditions(before.conditions or (), view.pressure, not_ready, view.now),
        daemonEndpoints=NodeDaemonEndpoints(
            kubeletEndpoint=DaemonEndpoint(Port=identity.port) if identity.port else None
        ),
        nodeInfo=view.info,
        images=_images(identity, view),
        runtimeHandlers=list(view.handlers) or None,
        features=view.features,
    )


def _merged(before: Mapping[str, Any] | None, own: Mapping[str, str]) -> dict[str, Any]:
    """Return our amounts, and beside them the extended resources that others announced."""
    return {**{k: v for k, v in (before or {}).items() if is_extended(k)}, **own}


def _addresses(
    identity: NodeIdentity, view: NodeView, before: list[NodeAddress] | None
) -> list[NodeAddress] | None:
    """Return the addresses: InternalIPs, primary first, then the host's name.

    With an external cloud provider they are its own as soon as it has set any; until then
    what `--node-ip` says stands in for them.
    """
    ips = view.host_ips
    if identity.external_cloud:
        if before or not identity.node_ips:
            return before
        ips = identity.node_ips
    internal = [NodeAddress(type="InternalIP", address=ip) for ip in ips]
    return [*internal, NodeAddress(type="Hostname", address=identity.name)]


def _images(identity: NodeIdentity, view: NodeView) -> list[Any] | None:
    if view.images is None:
        return None
    ordered = sorted(view.images, key=lambda image: -(image.sizeBytes or 0))
    if identity.max_images >= 0:
        ordered = ordered[: identity.max_images]
    return [
        msgspec.structs.replace(image, names=(image.names or [])[:_NAMES_PER_IMAGE])
        for image in ordered
    ] or None


def has_changed(before: NodeStatus, after: NodeStatus) -> bool:
    """Return whether more than heartbeats differ."""
    return _without_heartbeats(before) != _without_heartbeats(after)


def _without_heartbeats(status: NodeStatus) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(status)
    conditions = plain.pop("conditions", None) or []
    for condition in conditions:
        condition.pop("lastHeartbeatTime", None)
    # Others may have put theirs anywhere in the list.
    return {**plain, "conditions": sorted(conditions, key=lambda c: str(c["type"]))}


def status_patch(before: Node, after: NodeStatus) -> dict[str, Any]:
    """Return a strategic merge patch of `nodes/status`; empty where nothing differs."""
    old: dict[str, Any] = msgspec.to_builtins(before.status or NodeStatus())
    new: dict[str, Any] = msgspec.to_builtins(after)
    patch: dict[str, Any] = {}
    for name in sorted({*old, *new}):
        if old.get(name) == new.get(name):
            continue
        patch[name] = _field_patch(name, old.get(name), new.get(name))
    return {"status": patch} if patch else {}


def _field_patch(name: str, old: Any, new: Any) -> Any:
    if name == "addresses" and new:
        # The API says that this list merges by type, of which dual stack has two the same.
        return [*new, {"$patch": "replace"}]
    if name in _KEYED:
        return _list_patch(_KEYED[name], old or [], new or [])
    if isinstance(new, dict) and isinstance(old, dict):
        return _map_patch(old, new)
    return new


def _list_patch(key: str, old: list[Any], new: list[Any]) -> list[Any]:
    there = {item[key]: item for item in old}
    changed = [item for item in new if there.get(item[key]) != item]
    kept = {item[key] for item in new}
    return changed + [{"$patch": "delete", key: item[key]} for item in old if item[key] not in kept]


def _map_patch(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Return a merge patch of plain maps: what is gone is null."""
    patch: dict[str, Any] = {name: None for name in old if name not in new}
    for name, value in new.items():
        if old.get(name) == value and name in old:
            continue
        inner = isinstance(value, dict) and isinstance(old.get(name), dict)
        patch[name] = _map_patch(old[name], value) if inner else value
    return patch
