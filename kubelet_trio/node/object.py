"""The node's object to register, and the patch that reconciles an existing one.

Only fields that the kubelet owns are reconciled: labels, taints and annotations of others stay.
Source: initialNode, tryRegisterWithAPIServer and updateDefaultLabels in kubelet_node_status.go.
"""

from __future__ import annotations

from typing import Any

import msgspec
from lightkube.models.core_v1 import Node, NodeSpec, NodeStatus, Taint
from lightkube.models.meta_v1 import ObjectMeta

from kubelet_trio.model import is_extended
from kubelet_trio.node.types import NodeIdentity

ATTACH_DETACH = "volumes.kubernetes.io/controller-managed-attach-detach"
KEEP_VOLUMES = "volumes.kubernetes.io/keep-terminated-pod-volumes"
OBJECT_TTL = "node.alpha.kubernetes.io/ttl"
DEFAULT_TTL = 60.0  # seconds
PROVIDED_IP = "alpha.kubernetes.io/provided-node-ip"
UNINITIALIZED = Taint(
    key="node.cloudprovider.kubernetes.io/uninitialized", value="true", effect="NoSchedule"
)
UNSCHEDULABLE = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")

# The labels that are updated on an existing object, if this node has a value for them.
_RECONCILED = (
    "kubernetes.io/hostname",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "node.kubernetes.io/instance-type",
    "beta.kubernetes.io/instance-type",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
)


def initial_node(identity: NodeIdentity, status: NodeStatus) -> Node:
    """Return the object to create."""
    return Node(
        metadata=ObjectMeta(
            name=identity.name,
            labels=node_labels(identity),
            annotations=node_annotations(identity) or None,
        ),
        spec=NodeSpec(
            unschedulable=identity.unschedulable or None,
            taints=_taints(identity) or None,
            providerID=identity.provider_id or None,
        ),
        status=status,
    )


def node_labels(identity: NodeIdentity) -> dict[str, str]:
    """Return the labels to register with; `--node-labels` take precedence."""
    return {
        "kubernetes.io/hostname": identity.name,
        "kubernetes.io/os": identity.os,
        "kubernetes.io/arch": identity.arch,
        "beta.kubernetes.io/os": identity.os,
        "beta.kubernetes.io/arch": identity.arch,
        **identity.labels,
    }


def node_annotations(identity: NodeIdentity) -> dict[str, str]:
    """Return this node's values of the annotations that the kubelet owns."""
    annotations = {}
    if identity.attach_detach:
        annotations[ATTACH_DETACH] = "true"
    if identity.keep_terminated_volumes:
        annotations[KEEP_VOLUMES] = "true"
    if identity.external_cloud and identity.node_ips:
        annotations[PROVIDED_IP] = ",".join(identity.node_ips)
    return annotations


def _taints(identity: NodeIdentity) -> list[Taint]:
    taints = list(identity.taints)
    given = {(t.key, t.effect) for t in taints}
    if identity.unschedulable and (UNSCHEDULABLE.key, UNSCHEDULABLE.effect) not in given:
        taints.append(UNSCHEDULABLE)
    if identity.external_cloud:
        taints.append(UNINITIALIZED)
    return taints


def metadata_patch(identity: NodeIdentity, existing: Node) -> dict[str, Any]:
    """Return the patch of an existing object's `metadata`; empty if it is up to date."""
    meta = existing.metadata or ObjectMeta()
    labels, wanted = meta.labels or {}, node_labels(identity)
    changed: dict[str, str | None] = {}
    for name in _RECONCILED:
        if name in wanted and labels.get(name) != wanted[name]:
            changed[name] = wanted[name] or None
    patch: dict[str, Any] = {"labels": changed} if changed else {}
    annotations = _annotation_patch(identity, meta.annotations or {})
    if annotations:
        patch["annotations"] = annotations
    return patch


def upkeep_patch(
    identity: NodeIdentity, existing: Node, *, is_ip_valid: bool = True
) -> dict[str, Any]:
    """Return a patch of what each update of the status puts right; empty if it is.

    The labels of system and architecture: nobody may give them another value, not even
    `--node-labels` (updateNode of the Go kubelet). And the address for the cloud provider, where
    `--node-ip` is one of this machine.
    """
    meta = existing.metadata or ObjectMeta()
    labels = meta.labels or {}
    right = {"kubernetes.io/os": identity.os, "kubernetes.io/arch": identity.arch}
    changed = {name: value for name, value in right.items() if labels.get(name) != value}
    patch: dict[str, Any] = {"labels": changed} if changed else {}
    told = _annotation_patch(identity, meta.annotations or {}, (PROVIDED_IP,))
    if told and is_ip_valid:
        patch["annotations"] = told
    return {"metadata": patch} if patch else {}


def _annotation_patch(
    identity: NodeIdentity,
    existing: dict[str, str],
    # KEEP_VOLUMES is not reconciled: upstream sets it at the first registration only.
    names: tuple[str, ...] = (ATTACH_DETACH, PROVIDED_IP),
) -> dict[str, str | None]:
    wanted = node_annotations(identity)
    return {name: wanted.get(name) for name in names if existing.get(name) != wanted.get(name)}


def without_extended(existing: NodeStatus) -> NodeStatus:
    """Return the status with every extended resource set to zero.

    Resources of an earlier kubelet's device plugins are unavailable until the plugins register
    again; the scheduler must not use them meanwhile.
    """

    def zeroed(amounts: dict[str, Any] | None) -> dict[str, Any] | None:
        return amounts and {k: "0" if is_extended(k) else v for k, v in amounts.items()}

    return msgspec.structs.replace(
        existing, capacity=zeroed(existing.capacity), allocatable=zeroed(existing.allocatable)
    )


def object_ttl(node: Node | None) -> float:
    """Return how long, in seconds, this node may cache a secret or config map.

    The control plane's TTL controller sets it by the size of the cluster: 0 in a small one.
    """
    marks = (node.metadata.annotations if node is not None and node.metadata else None) or {}
    try:
        return float(int(marks.get(OBJECT_TTL, "")))
    except ValueError:
        return DEFAULT_TTL
