"""What the objects are called and which kinds there are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from lightkube.models.core_v1 import (
    ConfigMap,
    PersistentVolume,
    PersistentVolumeClaim,
    Secret,
)
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.models.node_v1 import RuntimeClass

ApiObject: TypeAlias = ConfigMap | Secret | PersistentVolumeClaim | PersistentVolume | RuntimeClass

KINDS: Mapping[str, type[ApiObject]] = {
    "ConfigMap": ConfigMap,
    "Secret": Secret,
    "PersistentVolumeClaim": PersistentVolumeClaim,
    "PersistentVolume": PersistentVolume,
    "RuntimeClass": RuntimeClass,
}
# The API versions of kinds that are not of the core.
API_VERSIONS: Mapping[str, str] = {"RuntimeClass": "node.k8s.io/v1"}
_CLUSTER_WIDE = ("PersistentVolume", "RuntimeClass")


class ObjectKey(NamedTuple):
    """Kind, namespace ("" for volumes and runtime classes, which have none) and name."""

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


def object_key(value: ApiObject) -> ObjectKey:
    """Return the key of an object as it came from its source."""
    meta = value.metadata or ObjectMeta()
    kind = type(value).__name__
    namespace = "" if kind in _CLUSTER_WIDE else meta.namespace or "default"
    return ObjectKey(kind, namespace, meta.name or "")
