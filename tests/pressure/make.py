"""Pods with requests and limits, made short."""

from __future__ import annotations

from typing import Any

import msgspec
from lightkube.models.core_v1 import Pod

from kubelet_trio.model import PodUid


def pod(
    name: str,
    *,
    priority: int | None = None,
    requests: dict[str, str] | None = None,
    limits: dict[str, str] | None = None,
    volumes: list[dict[str, Any]] | None = None,
) -> tuple[PodUid, Pod]:
    resources = {"requests": requests or {}, "limits": limits or {}}
    raw = {
        "metadata": {"name": name, "namespace": "ns", "uid": name},
        "spec": {
            "priority": priority,
            "containers": [{"name": "main", "image": "x", "resources": resources}],
            "volumes": volumes,
        },
    }
    return PodUid(name), msgspec.convert(raw, Pod)
