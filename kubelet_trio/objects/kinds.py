"""Kinds, keys and contents of the API objects that pods refer to."""

from __future__ import annotations

import base64
import binascii
import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from lightkube.models.core_v1 import (
    ConfigMap,
    PersistentVolume,
    PersistentVolumeClaim,
    Secret,
)
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.models.node_v1 import RuntimeClass

from kubelet_trio.model import sha256

if TYPE_CHECKING:
    from lightkube.models.resource_v1 import (
        DeviceClass,
        ResourceClaim,
        ResourceClaimTemplate,
        ResourceSlice,
    )
    from lightkube.models.storage_v1 import CSIDriver, StorageClass, VolumeAttachment

ApiObject: TypeAlias = (
    "ConfigMap | Secret | PersistentVolumeClaim | PersistentVolume | RuntimeClass"
    " | CSIDriver | StorageClass | VolumeAttachment"
    " | DeviceClass | ResourceClaim | ResourceClaimTemplate | ResourceSlice"
)
_STORAGE_KINDS = ("CSIDriver", "StorageClass", "VolumeAttachment")
DEVICE_KINDS = ("DeviceClass", "ResourceClaim", "ResourceClaimTemplate", "ResourceSlice")
# Their modules are loaded with the first of them: few nodes need one.
_MODULES: Mapping[str, str] = {
    **dict.fromkeys(_STORAGE_KINDS, "lightkube.models.storage_v1"),
    **dict.fromkeys(DEVICE_KINDS, "lightkube.models.resource_v1"),
}


class _Models(Mapping[str, "type[ApiObject]"]):
    """The models by kind."""

    _loaded: Mapping[str, type[ApiObject]] = {
        "ConfigMap": ConfigMap,
        "Secret": Secret,
        "PersistentVolumeClaim": PersistentVolumeClaim,
        "PersistentVolume": PersistentVolume,
        "RuntimeClass": RuntimeClass,
    }

    def __getitem__(self, kind: str) -> type[ApiObject]:
        if kind not in _MODULES:
            return self._loaded[kind]
        model: type[ApiObject] = getattr(importlib.import_module(_MODULES[kind]), kind)
        return model

    def __iter__(self) -> Iterator[str]:
        yield from self._loaded
        yield from _MODULES

    def __len__(self) -> int:
        return len(self._loaded) + len(_MODULES)

    def __contains__(self, kind: object) -> bool:
        return kind in self._loaded or kind in _MODULES


KINDS: Mapping[str, type[ApiObject]] = _Models()
# The kinds that a manifest may have in addition to pods.
DOCUMENT_KINDS = (
    "ConfigMap",
    "Secret",
    "PersistentVolumeClaim",
    "PersistentVolume",
    "RuntimeClass",
    "CSIDriver",
    "StorageClass",
    *DEVICE_KINDS,
)
# The API versions of kinds outside the core group.
API_VERSIONS: Mapping[str, str] = {
    "RuntimeClass": "node.k8s.io/v1",
    "CSIDriver": "storage.k8s.io/v1",
    "StorageClass": "storage.k8s.io/v1",
    "VolumeAttachment": "storage.k8s.io/v1",
    **dict.fromkeys(DEVICE_KINDS, "resource.k8s.io/v1"),
}
_CLUSTER_WIDE = (
    "PersistentVolume",
    "RuntimeClass",
    *_STORAGE_KINDS,
    "DeviceClass",
    "ResourceSlice",
)


class ObjectKey(NamedTuple):
    """Kind, namespace ("" for cluster-wide kinds) and name."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}" if self.namespace else self.name


def config_map_key(namespace: str, name: str | None) -> ObjectKey:
    return ObjectKey("ConfigMap", namespace, name or "")


def secret_key(namespace: str, name: str | None) -> ObjectKey:
    return ObjectKey("Secret", namespace, name or "")


def claim_key(namespace: str, name: str | None) -> ObjectKey:
    return ObjectKey("PersistentVolumeClaim", namespace, name or "")


def volume_key(name: str | None) -> ObjectKey:
    return ObjectKey("PersistentVolume", "", name or "")


def runtime_class_key(name: str | None) -> ObjectKey:
    return ObjectKey("RuntimeClass", "", name or "")


def csi_driver_key(name: str | None) -> ObjectKey:
    return ObjectKey("CSIDriver", "", name or "")


def attachment_key(name: str) -> ObjectKey:
    return ObjectKey("VolumeAttachment", "", name)


def attachment_name(driver: str, handle: str, node: str) -> str:
    """Return the name of a volume's VolumeAttachment (getAttachmentName in pkg/volume/csi)."""
    return f"csi-{sha256(f'{handle}{driver}{node}'.encode()).hexdigest()}"


def csi_unique_name(driver: str, handle: str) -> str:
    """Return a CSI volume's name in `volumesInUse` and `volumesAttached`."""
    return f"kubernetes.io/csi/{driver}^{handle}"


def object_key(value: ApiObject) -> ObjectKey:
    """Return the key of an object."""
    meta = value.metadata or ObjectMeta()
    kind = type(value).__name__
    namespace = "" if kind in _CLUSTER_WIDE else meta.namespace or "default"
    return ObjectKey(kind, namespace, meta.name or "")


@dataclass(frozen=True, slots=True)
class ServicePort:
    """A port of a service."""

    name: str
    protocol: str
    port: int


@dataclass(frozen=True, slots=True)
class ServiceFacts:
    """The part of a service that environment variables need: clusters have thousands of them."""

    namespace: str
    name: str
    ip: str
    ports: tuple[ServicePort, ...]


def config_map_content(config_map: ConfigMap) -> dict[str, bytes]:
    """Return text and binary data together, as a volume shows them. Raises ValueError."""
    content = {key: value.encode() for key, value in (config_map.data or {}).items()}
    content.update(_decode_all(config_map.binaryData))
    return content


def secret_content(secret: Secret) -> dict[str, bytes]:
    """Return a secret's data. Raises ValueError if a value is not base64."""
    content = _decode_all(secret.data)
    # `stringData` overrides `data`, as at the API server.
    content.update({key: value.encode() for key, value in (secret.stringData or {}).items()})
    return content


def _decode_all(data: dict[str, str] | None) -> dict[str, bytes]:
    return {key: decode_base64(value) for key, value in (data or {}).items()}


def decode_base64(text: str) -> bytes:
    """Decode standard base64, line breaks allowed, as the API server does. Raises ValueError."""
    try:
        return base64.b64decode(text.replace("\n", "").replace("\r", ""), validate=True)
    except binascii.Error as exc:
        raise ValueError(f"not base64: {exc}") from None
