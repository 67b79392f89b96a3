"""Pods from the text of a manifest."""

from __future__ import annotations

from lightkube.models.core_v1 import Pod

from kubelet_trio.sources import load_manifest


def load_pods(data: bytes, origin: str, *, node_name: str, source: str = "file") -> tuple[Pod, ...]:
    """Return the pods of a manifest; see `load_manifest`."""
    return load_manifest(data, origin, node_name=node_name, source=source).pods
