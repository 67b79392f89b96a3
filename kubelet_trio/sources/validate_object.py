"""Is this a config map, secret, claim or volume that pods here can use?

Source: pkg/apis/core/validation. What a volume can be made of on this node is decided here
too, so that a manifest is refused and not a pod's mount, later.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from lightkube.models.core_v1 import (
    ConfigMap,
    PersistentVolume,
    PersistentVolumeClaim,
    PersistentVolumeClaimSpec,
    PersistentVolumeSpec,
    Secret,
)
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.models.node_v1 import RuntimeClass
from msgspec.structs import replace

from kubelet_trio.objects import ApiObject, config_map_content, secret_content
from kubelet_trio.sources import syntax
from kubelet_trio.sources._errors import FieldError
from kubelet_trio.sources.field_errors import Errors
from kubelet_trio.sources.validate_quantity import quantity

MAX_CONTENT = 1024 * 1024  # bytes of all keys and values, as at the API server

# What a volume that a claim is bound to can be, here.
VOLUME_SOURCES = ("hostPath", "local", "nfs")
_NOT_SOURCES = frozenset(
    (
        "accessModes",
        "capacity",
        "claimRef",
        "mountOptions",
        "nodeAffinity",
        "persistentVolumeReclaimPolicy",
        "storageClassName",
        "volumeAttributesClassName",
        "volumeMode",
    )
)
_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")


def default_object(value: ApiObject) -> ApiObject:
    """Return the object with the namespace it is in."""
    meta = value.metadata or ObjectMeta()
    if isinstance(value, PersistentVolume | RuntimeClass) or meta.namespace:
        return value
    defaulted: ApiObject = replace(value, metadata=replace(meta, namespace="default"))
    return defaulted


def validate_object(value: ApiObject) -> list[FieldError]:
    """Return everything that is wrong with an object."""
    errors = Errors()
    meta = value.metadata or ObjectMeta()
    errors.need("metadata.name", meta.name, syntax.dns_subdomain)
    if isinstance(value, RuntimeClass):
        if meta.namespace:
            errors.forbidden("metadata.namespace", "a runtime class has none")
        _runtime_class(errors, value)
        return errors.found
    if isinstance(value, PersistentVolume):
        if meta.namespace:
            errors.forbidden("metadata.namespace", "a volume has none")
        _volume(errors, value.spec)
        return errors.found
    if meta.namespace:
        errors.check("metadata.namespace", meta.namespace, syntax.dns_label)
    if isinstance(value, PersistentVolumeClaim):
        _claim(errors, value.spec or PersistentVolumeClaimSpec())
    elif isinstance(value, ConfigMap):
        _config_map(errors, value)
    else:
        _secret(errors, value)
    return errors.found


def _runtime_class(errors: Errors, value: RuntimeClass) -> None:
    errors.need("handler", value.handler, syntax.dns_label)
    for name, text in ((value.overhead.podFixed if value.overhead else None) or {}).items():
        quantity(errors, f"overhead.podFixed[{name}]", text)


def config_key(text: str) -> str | None:
    """Check a key of a config map or secret: it becomes a file's name."""
    if not _KEY.fullmatch(text):
        return "must be up to 253 letters, digits, '-', '_' or '.'"
    if text == "." or text.startswith(".."):
        return "must not be '.' nor begin with '..'"
    return None


def _config_map(errors: Errors, value: ConfigMap) -> None:
    _keys(errors, value.data, "data")
    _keys(errors, value.binaryData, "binaryData")
    for key in (value.binaryData or {}).keys() & (value.data or {}).keys():
        errors.invalid("data", key, "duplicate of key present in binaryData")
    try:
        _size(errors, config_map_content(value), "")
    except ValueError as exc:
        errors.invalid("binaryData", "(not shown)", str(exc))


def _secret(errors: Errors, value: Secret) -> None:
    _keys(errors, value.data, "data")
    _keys(errors, value.stringData, "stringData")
    try:
        _size(errors, secret_content(value), "data")
    except ValueError as exc:
        errors.invalid("data", "(not shown)", str(exc))


def _keys(errors: Errors, data: Mapping[str, str] | None, path: str) -> None:
    for key in data or ():
        errors.check(f"{path}[{key}]", key, config_key)


def _size(errors: Errors, content: Mapping[str, bytes], path: str) -> None:
    if sum(len(key) + len(value) for key, value in content.items()) > MAX_CONTENT:
        errors.forbidden(path, f"larger than {MAX_CONTENT} bytes in all")


def _claim(errors: Errors, spec: PersistentVolumeClaimSpec) -> None:
    if not spec.volumeName:
        errors.required("spec.volumeName", "nothing but the manifest binds claims on this node")
    _mode(errors, spec.volumeMode)


def _volume(errors: Errors, spec: PersistentVolumeSpec | None) -> None:
    if spec is None:
        errors.required("spec")
        return
    _mode(errors, spec.volumeMode)
    sources = [
        f for f in spec.__struct_fields__ if f not in _NOT_SOURCES and getattr(spec, f) is not None
    ]
    if not sources:
        errors.required("spec", "must specify a volume type")
    for kind in sources[1:]:
        errors.forbidden(f"spec.{kind}", "may not specify more than 1 volume type")
    for kind in sources[:1]:
        if kind not in VOLUME_SOURCES:
            errors.forbidden(f"spec.{kind}", "volumes of this type are not supported by this agent")
    for kind in VOLUME_SOURCES:
        source = getattr(spec, kind)
        if source is not None:
            errors.need(f"spec.{kind}.path", source.path, syntax.no_way_up)
    if spec.nfs is not None:
        nfs(errors, spec.nfs.server, spec.nfs.path, "spec.nfs")


def nfs(errors: Errors, server: str, path: str, where: str) -> None:
    """Check where an NFS export is."""
    if not server:
        errors.required(f"{where}.server")
    if path and not path.startswith("/"):
        errors.invalid(f"{where}.path", path, "must be an absolute path")


def _mode(errors: Errors, mode: str | None) -> None:
    if mode not in (None, "Filesystem"):
        errors.unsupported("spec.volumeMode", mode, ("Filesystem",))
