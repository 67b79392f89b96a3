"""Pods and nodes for this room's tests."""

from __future__ import annotations

from typing import Any

from lightkube.models.core_v1 import Container, Pod, PodSpec, ResourceRequirements
from lightkube.models.meta_v1 import ObjectMeta

from kubelet_trio.containers import NodeSettings
from kubelet_trio.model import ContainerKind, PodContainer

NODE = NodeSettings("node-1", "node-1.example", cluster_domain="cluster.local")


def container(name: str = "main", **fields: Any) -> Container:
    return Container(name=name, **{"image": "busybox", **fields})


def sized(
    name: str = "main",
    requests: dict[str, str] | None = None,
    limits: dict[str, str] | None = None,
    **fields: Any,
) -> Container:
    return container(
        name, resources=ResourceRequirements(requests=requests, limits=limits), **fields
    )


def pod(
    *containers: Container, name: str = "web", meta: dict[str, Any] | None = None, **fields: Any
) -> Pod:
    return Pod(
        metadata=ObjectMeta(name=name, namespace="default", uid="u-1", **(meta or {})),
        spec=PodSpec(containers=list(containers) or [container()], **fields),
    )


def main(spec: Container) -> PodContainer:
    return PodContainer(ContainerKind.MAIN, spec)


def init(spec: Container) -> PodContainer:
    return PodContainer(ContainerKind.INIT, spec)
