"""Specs of volumes on disks, and what is left of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightkube.models.core_v1 import Container, Pod, PodSecurityContext, PodSpec, Secret
from lightkube.models.meta_v1 import ObjectMeta

from kubelet_trio.objects import ObjectView, secret_key
from kubelet_trio.volumes.spec import VolumeSpec


def disk_spec(
    kind: str,
    source: Any,
    *,
    uid: str = "u-1",
    name: str = "pv",
    fs_group: int | None = None,
    secret: Secret | None = None,
    **fields: Any,
) -> VolumeSpec:
    security = PodSecurityContext(fsGroup=fs_group) if fs_group is not None else None
    pod = Pod(
        metadata=ObjectMeta(name="web", namespace="default", uid=uid),
        spec=PodSpec(
            containers=[Container(name="main", image="x")],
            securityContext=security,
            serviceAccountName="robot",
        ),
    )
    found = {} if secret is None else {secret_key("default", "secret"): secret}
    objects = ObjectView(found)
    return VolumeSpec(pod, "data", kind, source, name, objects=objects, **fields)


def left_below(*directories: Path) -> list[str]:
    """Files and empty directories below: what a teardown has left."""
    found = [p for d in directories if d.exists() for p in d.rglob("*")]
    return sorted(str(p) for p in found if not p.is_dir() or not any(p.iterdir()))
