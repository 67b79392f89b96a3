"""Documents of CSI volumes for static pods, and pods that use them."""

from __future__ import annotations

from typing import Any

import yaml

from tests.harness.agent import Agent
from tests.harness.csi import DRIVER
from tests.harness.manifests import container, forever, pod
from tests.harness.pods import Json

MODE = "ReadWriteMany"


def volume_documents(
    name: str,
    handle: str = "",
    *,
    driver: str = DRIVER,
    access_mode: str = MODE,
    mode: str = "Filesystem",
    **csi: Any,
) -> list[Json]:
    """Return a persistent volume of a CSI driver, and the claim of the same name for it."""
    source = {"driver": driver, "volumeHandle": handle or f"dir-{name}", **csi}
    shared = {"accessModes": [access_mode], "volumeMode": mode, "storageClassName": ""}
    return [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": name},
            "spec": {**shared, "capacity": {"storage": "16Mi"}, "csi": source},
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name},
            "spec": {
                **shared,
                "volumeName": name,
                "resources": {"requests": {"storage": "16Mi"}},
            },
        },
    ]


def driver_document(name: str = DRIVER, **spec: Any) -> Json:
    """Return the CSIDriver object of a driver that nobody attaches volumes for."""
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "CSIDriver",
        "metadata": {"name": name},
        "spec": {"attachRequired": False, **spec},
    }


def put_documents(agent: Agent, *documents: Json, file: str) -> None:
    """Write documents into one file beside the manifests."""
    agent.put(yaml.safe_dump_all(documents), f"{file}.yaml")


def claimed(claim: str) -> Json:
    """Return a pod's volume `v` for a claim."""
    return {"name": "v", "persistentVolumeClaim": {"claimName": claim}}


def pod_with(name: str, volume: Json, script: str = "", **spec: Any) -> Json:
    """Return a pod whose container has the volume `v` at /data."""
    mounts = [{"name": "v", "mountPath": "/data"}]
    main = container("main", forever(script or "true"), volumeMounts=mounts)
    return pod(name, main, volumes=[volume], **spec)


def pod_with_device(name: str, volume: Json, script: str = "", **spec: Any) -> Json:
    """Return a pod whose container has the volume `v` as the block device /dev/xvda."""
    devices = [{"name": "v", "devicePath": "/dev/xvda"}]
    main = container("main", forever(script or "true"), volumeDevices=devices)
    return pod(name, main, volumes=[volume], **spec)
