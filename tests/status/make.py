"""Pods and statuses as the tests of this room want them."""

from __future__ import annotations

from typing import Any

import msgspec
from lightkube.models.core_v1 import (
    Container,
    Node,
    Pod,
    PodCondition,
    PodSpec,
    PodStatus,
    ResourceRequirements,
)
from lightkube.models.meta_v1 import ObjectMeta

from kubelet_trio.model import CONFIG_HASH, CONFIG_SOURCE, PodKey, PodUid, metadata, pod_uid
from kubelet_trio.testing import FakeKube

NODE = "node-1"


def api_pod(name: str = "web", **meta: Any) -> Pod:
    return Pod(
        metadata=ObjectMeta(name=name, namespace="default", **meta),
        spec=PodSpec(containers=[Container(name="web", image="web")], nodeName=NODE),
    )


def static_pod(
    name: str = "etcd-node-1",
    config: str = "hash-1",
    namespace: str = "default",
    resources: ResourceRequirements | None = None,
) -> Pod:
    """A static pod as a source delivers it."""
    return Pod(
        metadata=ObjectMeta(
            name=name,
            namespace=namespace,
            uid=config,
            annotations={
                CONFIG_HASH: config,
                CONFIG_SOURCE: "file",
                "kubelet-trio/manifest": "/etc/kubernetes/manifests/etcd.yaml",
            },
        ),
        spec=PodSpec(
            containers=[Container(name="etcd", image="etcd", resources=resources)], nodeName=NODE
        ),
    )


def with_status(pod: Pod, phase: str = "Running", **fields: Any) -> Pod:
    return msgspec.structs.replace(pod, status=PodStatus(phase=phase, **fields))


def condition(type_: str, status: str = "True", **fields: Any) -> PodCondition:
    return PodCondition(type=type_, status=status, **fields)


def conditions(status: PodStatus | None) -> dict[str, str]:
    return {c.type: c.status for c in (status.conditions if status else None) or ()}


def observed(kube: FakeKube) -> tuple[dict[PodUid, Pod], dict[PodKey, Pod]]:
    """Return what a watch of the node's pods tells now: pods by UID, mirrors by name."""
    pods: dict[PodUid, Pod] = {}
    mirrors: dict[PodKey, Pod] = {}
    for pod in kube.all(Pod):
        meta = metadata(pod)
        if "kubernetes.io/config.mirror" in (meta.annotations or {}):
            mirrors[PodKey(meta.namespace or "", meta.name or "")] = pod
        else:
            pods[pod_uid(pod)] = pod
    return pods, mirrors


def add_node(kube: FakeKube) -> Node:
    return kube.add(Node(metadata=ObjectMeta(name=NODE)))
