"""Pods for the tests of the managers."""

from __future__ import annotations

from collections.abc import Sequence

from lightkube.models.core_v1 import Container, Pod, PodSpec, ResourceRequirements
from lightkube.models.meta_v1 import ObjectMeta


def container(
    name: str, cpu: str, *, memory: str = "1Gi", limit: str = "", restart: str | None = None
) -> Container:
    """Return a container whose limits equal its requests, unless `limit` (of CPU) differs."""
    return Container(
        name=name,
        restartPolicy=restart,
        resources=ResourceRequirements(
            requests={"cpu": cpu, "memory": memory}, limits={"cpu": limit or cpu, "memory": memory}
        ),
    )


def sidecar(name: str, cpu: str) -> Container:
    return container(name, cpu, restart="Always")


def pod(
    *containers: Container,
    uid: str = "uid",
    init: Sequence[Container] = (),
    resources: ResourceRequirements | None = None,
) -> Pod:
    """Return a pod; `resources` are those of the pod itself."""
    return Pod(
        metadata=ObjectMeta(name=f"pod-{uid}", namespace="default", uid=uid),
        spec=PodSpec(
            containers=list(containers), initContainers=list(init) or None, resources=resources
        ),
    )
