"""The node's status as a pure function of its view and its last status, and the patch to send.

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

from kubelet_trio.kube import make_strategic
from kubelet_trio.model import is_extended
from kubelet_trio.node.conditions import node_conditions
from kubelet_trio.node.types import NodeIdentity, NodeView

_NAMES_PER_IMAGE = 5
_REQUIRED = ("cpu", "memory", "pods")
_DISK = "ephemeral-storage"  # required with localStorageCapacityIsolation


def node_status(identity: NodeIdentity, view: NodeView, before: NodeStatus) -> NodeStatus:
    """Return the status to report; fields of other owners in `before` are kept."""
    capacity = {**_announced(before.capacity), **view.resources.capacity}
    allocatable = {**_allocatable(before, capacity), **view.resources.allocatable}
    required = (*_REQUIRED, _DISK) if identity.local_storage else _REQUIRED
    missing = [name for name in required if name not in capacity]
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
        # Replaces the features that a previous kubelet declared on this node.
        declaredFeatures=list(view.declared) or None,
        volumesInUse=_volumes(view, before),
    )


def _announced(amounts: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the amounts that others announce: of extended resources, and any with a domain.

    Koordinator's `kubernetes.io/batch-cpu`, for example, is no extended resource.
    """
    return {name: amount for name, amount in (amounts or {}).items() if "/" in name}


def _allocatable(before: NodeStatus, capacity: Mapping[str, Any]) -> dict[str, Any]:
    """Return what can be allocated of them: all of it, whoever announced only the capacity.

    An extended resource without a capacity is withdrawn. Source: MachineInfo.
    """
    kept = {n: a for n, a in _announced(before.allocatable).items() if not is_extended(n)}
    return {**kept, **_announced(capacity)}


def _addresses(
    identity: NodeIdentity, view: NodeView, before: list[NodeAddress] | None
) -> list[NodeAddress] | None:
    """Return the addresses: InternalIPs, primary first, then the host's name.

    An external cloud provider owns them once it has set any; until then there is the name, and
    InternalIPs if `--node-ip` is set. With a problem of `--node-ip` they do not change.
    """
    if view.address_problem is not None or (identity.external_cloud and before):
        return before
    ips = view.host_ips
    if identity.external_cloud and not identity.has_node_ip:
        ips = ()
    internal = [NodeAddress(type="InternalIP", address=ip) for ip in ips]
    return [*internal, NodeAddress(type="Hostname", address=identity.name)]


def _volumes(view: NodeView, before: NodeStatus) -> list[str] | None:
    if view.volumes_in_use is None:
        return before.volumesInUse
    return list(view.volumes_in_use) or None


def _images(identity: NodeIdentity, view: NodeView) -> list[Any] | None:
    if view.images is None:
        return None
    told = view.images[: identity.max_images] if identity.max_images >= 0 else view.images
    return [
        msgspec.structs.replace(image, names=(image.names or [])[:_NAMES_PER_IMAGE])
        for image in told
    ] or None


def status_patch(before: Node, after: NodeStatus) -> dict[str, Any]:
    """Return a strategic merge patch of `nodes/status`; empty if nothing differs."""
    old = msgspec.to_builtins(before.status or NodeStatus())
    return _patch(old, msgspec.to_builtins(after))


def material_patch(before: NodeStatus, after: NodeStatus) -> dict[str, Any]:
    """Return the patch without heartbeat times; empty if nothing else differs."""
    return _patch(_without_heartbeats(before), _without_heartbeats(after))


def _without_heartbeats(status: NodeStatus) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(status)
    for condition in plain.get("conditions") or ():
        condition.pop("lastHeartbeatTime", None)
    return plain


def _patch(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    # The API merges addresses by type, but a dual-stack node has two of type InternalIP: replace
    # the list (PatchNodeStatus does the same).
    before, after = old.pop("addresses", None), new.pop("addresses", None)
    patch = make_strategic({"status": old}, {"status": new}, "Node")
    if before != after:
        whole = [{"$patch": "replace"}, *(after or ())]
        patch.setdefault("status", {})["addresses"] = whole
    return patch
