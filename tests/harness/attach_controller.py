"""The attach controller and a driver's external-attacher, for one node of a real API server.

It does what kube-controller-manager and the attacher do: a VolumeAttachment for each volume that a
pod of the node claims, attached with metadata, and the node's `volumesAttached`. It detaches a
volume that no pod wants, once the node's `volumesInUse` does not list it any more.
"""

from __future__ import annotations

import hashlib
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

from tests.harness.kube import KubeCallError, KubeClient
from tests.harness.pods import Json

ATTACHMENTS = "/apis/storage.k8s.io/v1/volumeattachments"
_PERIOD = 0.2  # seconds


@dataclass(frozen=True, slots=True)
class Volume:
    """A volume as its persistent volume names it."""

    driver: str
    handle: str
    persistent: str

    @property
    def unique_name(self) -> str:
        return f"kubernetes.io/csi/{self.driver}^{self.handle}"

    def attachment(self, node: str) -> str:
        digest = hashlib.sha256(f"{self.handle}{self.driver}{node}".encode()).hexdigest()
        return f"csi-{digest}"


class AttachController:
    """Attaches and detaches in a thread of its own, from `with` to its end."""

    def __init__(self, kube: KubeClient, node: str) -> None:
        """Make a controller; `kube` is an administrator's client, for it alone."""
        self._kube = kube
        self._node = node
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="attach-controller")
        self.refuses = ""  # the error of volumes that are not attached yet
        self.history: list[tuple[str, str]] = []  # `attach` or `detach`, and the unique name
        self.failure: BaseException | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        if self.failure is not None:
            raise self.failure

    def attached(self) -> list[str]:
        """Return the node's `volumesAttached`."""
        status = self._kube.get(f"/api/v1/nodes/{self._node}").get("status", {})
        return [entry["name"] for entry in status.get("volumesAttached", ())]

    def in_use(self) -> list[str]:
        """Return the node's `volumesInUse`."""
        status = self._kube.get(f"/api/v1/nodes/{self._node}").get("status", {})
        return list(status.get("volumesInUse", ()))

    def _run(self) -> None:
        try:
            while not self._end.wait(_PERIOD):
                # Another writer of the object was faster: read it again.
                with suppress(KubeCallError):
                    self._round()
        except BaseException as exc:
            self.failure = exc
            raise

    def _round(self) -> None:
        wanted = {volume.unique_name: volume for volume in self._wanted()}
        attached = set(self.attached())
        for name, volume in wanted.items():
            if self._attach(volume) and name not in attached:
                attached.add(name)
                self._list(attached)
                self.history.append(("attach", name))
        for name in sorted(attached - wanted.keys()):
            if name in self.in_use():
                continue
            attached.discard(name)
            self._list(attached)
            driver, _, handle = name.removeprefix("kubernetes.io/csi/").partition("^")
            gone = Volume(driver, handle, "").attachment(self._node)
            self._kube.delete(f"{ATTACHMENTS}/{gone}")
            self.history.append(("detach", name))

    def _wanted(self) -> list[Volume]:
        """Return the CSI volumes that the node's pods claim."""
        found = []
        pods = self._kube.get("/api/v1/pods", fieldSelector=f"spec.nodeName={self._node}")
        for pod in pods["items"]:
            if pod["status"].get("phase") in ("Succeeded", "Failed"):
                continue
            namespace = pod["metadata"]["namespace"]
            for volume in pod["spec"].get("volumes", ()):
                if claim := volume.get("persistentVolumeClaim"):
                    found += self._claimed(namespace, claim["claimName"])
        return found

    def _claimed(self, namespace: str, claim_name: str) -> list[Volume]:
        path = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/{claim_name}"
        claim = self._kube.find(path) or {}
        name: str = claim.get("spec", {}).get("volumeName", "")
        volume = self._kube.find(f"/api/v1/persistentvolumes/{name}") if name else None
        csi = volume["spec"].get("csi") if volume is not None else None
        return [Volume(csi["driver"], csi["volumeHandle"], name)] if csi else []

    def _attach(self, volume: Volume) -> bool:
        """Create the VolumeAttachment, and be its driver's attacher; return whether it is done."""
        name = volume.attachment(self._node)
        source = {"persistentVolumeName": volume.persistent}
        spec = {"attacher": volume.driver, "nodeName": self._node, "source": source}
        if (found := self._kube.find(f"{ATTACHMENTS}/{name}")) is None:
            found = self._kube.create(ATTACHMENTS, {"metadata": {"name": name}, "spec": spec})
        if found.get("status", {}).get("attached"):
            return True
        if self.refuses:
            error = {"message": self.refuses, "time": "2026-01-01T00:00:00Z"}
            self._set(name, {"attached": False, "attachError": error})
            return False
        metadata = {"slot": f"slot-of-{volume.handle}"}
        self._set(name, {"attached": True, "attachmentMetadata": metadata, "attachError": None})
        return True

    def _set(self, name: str, status: Json) -> None:
        self._kube.patch(f"{ATTACHMENTS}/{name}/status", {"status": status})

    def _list(self, names: set[str]) -> None:
        entries: list[Any] = [{"name": name, "devicePath": ""} for name in sorted(names)]
        status = {"status": {"volumesAttached": entries}}
        self._kube.patch(f"/api/v1/nodes/{self._node}/status", status)
