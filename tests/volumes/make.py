"""Pods with volumes, for this room's tests."""

from __future__ import annotations

from typing import Any

from lightkube.models.core_v1 import (
    Container,
    EmptyDirVolumeSource,
    HostPathVolumeSource,
    Pod,
    PodSpec,
    Volume,
    VolumeMount,
)
from lightkube.models.meta_v1 import ObjectMeta

from kubelet_trio.model import ContainerKind, PodContainer


def empty_dir(name: str = "data", **fields: Any) -> Volume:
    return Volume(name=name, emptyDir=EmptyDirVolumeSource(**fields))


def host_path(path: object, type_: str | None = None, name: str = "host") -> Volume:
    return Volume(name=name, hostPath=HostPathVolumeSource(path=str(path), type=type_))


def mount(name: str = "data", path: str = "/data", **fields: Any) -> VolumeMount:
    return VolumeMount(mountPath=path, name=name, **fields)


def pod(*volumes: Volume, mounts: list[VolumeMount] | None = None, **container: Any) -> Pod:
    """A pod whose one container mounts every volume, or what `mounts` says."""
    if mounts is None:
        mounts = [mount(volume.name, f"/{volume.name}") for volume in volumes]
    main = Container(name="main", image="busybox", volumeMounts=mounts, **container)
    return Pod(
        metadata=ObjectMeta(name="web", namespace="default", uid="u-1"),
        spec=PodSpec(containers=[main], volumes=list(volumes)),
    )


def main(of_pod: Pod) -> PodContainer:
    assert of_pod.spec is not None
    return PodContainer(ContainerKind.MAIN, of_pod.spec.containers[0])
