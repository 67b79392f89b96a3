"""Volumes of one CSI driver that pods of a simulation may have, as parts of manifests."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

DRIVER = "fake.csi.example.org"
# For any number of pods: file systems, and a raw device.
SHARED = ("v0", "v1")
DEVICE = "b0"
INLINE = "inline"
CLAIMED = (*SHARED, DEVICE)
_COMBINATIONS = (
    *((),) * 3,
    ("v0",),
    ("v0", "v1"),
    ("v1", INLINE),
    (DEVICE,),
    ("v0", DEVICE),
    (INLINE,),
)


def claims() -> st.SearchStrategy[tuple[str, ...]]:
    """Draw which of the volumes a pod has."""
    return st.sampled_from(_COMBINATIONS)


def claim_volumes(names: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return the `volumes` of a pod."""
    return [
        {"name": name, "csi": {"driver": DRIVER}}
        if name == INLINE
        else {"name": name, "persistentVolumeClaim": {"claimName": name}}
        for name in names
    ]


def file_mounts(names: tuple[str, ...]) -> list[dict[str, str]]:
    """Return the `volumeMounts` of a container."""
    return [{"name": name, "mountPath": f"/{name}"} for name in names if name != DEVICE]


def device_mounts(names: tuple[str, ...]) -> list[dict[str, str]]:
    """Return the `volumeDevices` of a container."""
    return [{"name": name, "devicePath": f"/dev/{name}"} for name in names if name == DEVICE]


def storage_documents(*, republishes: bool) -> str:
    """Return the documents of the driver and its volumes, for the manifests directory."""
    documents = [_document("storage.k8s.io/v1", "CSIDriver", DRIVER, _driver(republishes))]
    for name in CLAIMED:
        mode = {"accessModes": ["ReadWriteMany"]}
        if name == DEVICE:
            mode = {**mode, "volumeMode": "Block"}  # type: ignore[dict-item]  # of JSON
        source = {"driver": DRIVER, "volumeHandle": name}
        volume = {**mode, "capacity": {"storage": "1Gi"}, "csi": source}
        claim = {**mode, "resources": {"requests": {"storage": "1Gi"}}, "volumeName": name}
        documents.append(_document("v1", "PersistentVolume", name, volume))
        documents.append(_document("v1", "PersistentVolumeClaim", name, claim))
    return "\n---\n".join(map(json.dumps, documents))


def _driver(republishes: bool) -> dict[str, Any]:
    return {
        "attachRequired": False,
        "podInfoOnMount": True,  # the driver knows an inline volume by it
        "requiresRepublish": republishes,
        "volumeLifecycleModes": ["Persistent", "Ephemeral"],
    }


def _document(version: str, kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec}
