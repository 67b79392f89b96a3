"""Validates a config map, secret, claim, volume, driver or class from a manifest.

Also refuses volume types that this node cannot mount: better the manifest now than the pod's
mount later.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from lightkube.models.core_v1 import (
    ConfigMap,
    HostPathVolumeSource,
    PersistentVolume,
    PersistentVolumeClaim,
    PersistentVolumeClaimSpec,
    PersistentVolumeSpec,
    Secret,
)
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.models.node_v1 import RuntimeClass
from msgspec.structs import replace

from kubelet_trio.objects import (
    DEVICE_KINDS,
    IN_TREE_KINDS,
    ApiObject,
    config_map_content,
    secret_content,
)
from kubelet_trio.sources.errors import FieldError
from kubelet_trio.sources.validation import disks, storage, syntax
from kubelet_trio.sources.validation.field_errors import FieldErrors

if TYPE_CHECKING:
    from lightkube.models.storage_v1 import CSIDriver, StorageClass

    from kubelet_trio.sources.validation.claims import DeviceObject

MAX_CONTENT = 1024 * 1024  # bytes of all keys and values: v1.MaxSecretSize

# The types of persistent volumes that this agent mounts.
VOLUME_SOURCES = ("csi", "fc", "flexVolume", "hostPath", "iscsi", "local", "nfs", *IN_TREE_KINDS)
VOLUME_MODES = ("Filesystem", "Block")
_BLOCK_SOURCES = {"csi", "fc", "iscsi", "local", *IN_TREE_KINDS} - {"azureFile"}
HOST_PATH_TYPES = (
    "",
    "DirectoryOrCreate",
    "Directory",
    "FileOrCreate",
    "File",
    "Socket",
    "CharDevice",
    "BlockDevice",
)
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
# Kinds without a namespace, with their names in errors.
_CLUSTER_WIDE = {
    "CSIDriver": "a CSI driver",
    "PersistentVolume": "a volume",
    "RuntimeClass": "a runtime class",
    "StorageClass": "a storage class",
    "DeviceClass": "a device class",
    "ResourceSlice": "a resource slice",
}
_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")


def default_object(value: ApiObject) -> ApiObject:
    """Return the object with its namespace set, and a driver with the API server's defaults."""
    meta, kind = value.metadata or ObjectMeta(), type(value).__name__
    if kind == "CSIDriver":
        return storage.default_driver(cast("CSIDriver", value))
    if kind == "ResourceClaim":
        # What another node or a cluster has allocated is nothing here.
        value = replace(value, status=None)
    if kind in _CLUSTER_WIDE or meta.namespace:
        return value
    defaulted: ApiObject = replace(value, metadata=replace(meta, namespace="default"))
    return defaulted


def validate_object(value: ApiObject) -> list[FieldError]:
    """Return all errors of an object."""
    errors = FieldErrors()
    meta, kind = value.metadata or ObjectMeta(), type(value).__name__
    is_driver = kind == "CSIDriver"
    errors.need(
        "metadata.name", meta.name, storage.driver_name if is_driver else syntax.dns_subdomain
    )
    if meta.namespace and kind in _CLUSTER_WIDE:
        errors.forbidden("metadata.namespace", f"{_CLUSTER_WIDE[kind]} has none")
    elif meta.namespace:
        errors.check("metadata.namespace", meta.namespace, syntax.dns_label)
    if isinstance(value, RuntimeClass):
        _runtime_class(errors, value)
    elif isinstance(value, PersistentVolume):
        _volume(errors, value)
    elif isinstance(value, PersistentVolumeClaim):
        _claim(errors, value.spec or PersistentVolumeClaimSpec())
    elif isinstance(value, ConfigMap):
        _config_map(errors, value)
    elif isinstance(value, Secret):
        _secret(errors, value)
    elif kind in DEVICE_KINDS:
        from kubelet_trio.sources.validation import claims  # deferred: few nodes have one

        claims.validate(errors, cast("DeviceObject", value))
    elif is_driver:
        storage.validate_driver(errors, cast("CSIDriver", value).spec)
    else:
        storage.validate_storage_class(errors, cast("StorageClass", value))
    return errors.found


def _runtime_class(errors: FieldErrors, value: RuntimeClass) -> None:
    errors.need("handler", value.handler, syntax.dns_label)
    for name, text in ((value.overhead.podFixed if value.overhead else None) or {}).items():
        errors.quantity(f"overhead.podFixed[{name}]", text)


def config_key(text: str) -> str | None:
    """Check a key of a config map or secret: it becomes a file name."""
    if not _KEY.fullmatch(text):
        return "must be up to 253 letters, digits, '-', '_' or '.'"
    # The atomic writer of volumes uses such names: `..data` and its dated directories.
    if text == "." or text.startswith(".."):
        return "must not be '.' nor begin with '..'"
    return None


def _config_map(errors: FieldErrors, value: ConfigMap) -> None:
    _keys(errors, value.data, "data")
    _keys(errors, value.binaryData, "binaryData")
    for key in (value.binaryData or {}).keys() & (value.data or {}).keys():
        errors.invalid("data", key, "duplicate of key present in binaryData")
    try:
        _size(errors, config_map_content(value), "")
    except ValueError as exc:
        # Values may be secret, so errors never quote them.
        errors.invalid("binaryData", "(not shown)", str(exc))


def _secret(errors: FieldErrors, value: Secret) -> None:
    _keys(errors, value.data, "data")
    _keys(errors, value.stringData, "stringData")
    try:
        _size(errors, secret_content(value), "data")
    except ValueError as exc:
        errors.invalid("data", "(not shown)", str(exc))


def _keys(errors: FieldErrors, data: Mapping[str, str] | None, path: str) -> None:
    for key in data or ():
        errors.check(f"{path}[{key}]", key, config_key)


def _size(errors: FieldErrors, content: Mapping[str, bytes], path: str) -> None:
    if sum(len(key) + len(value) for key, value in content.items()) > MAX_CONTENT:
        errors.forbidden(path, f"larger than {MAX_CONTENT} bytes in all")


def _claim(errors: FieldErrors, spec: PersistentVolumeClaimSpec) -> None:
    if not spec.volumeName:
        # Binder and provisioners are controllers of a cluster: such a claim would wait for ever.
        errors.required(
            "spec.volumeName",
            "no controller binds claims on this node: give the name of a PersistentVolume document",
        )
    _mode(errors, spec.volumeMode)


def _volume(errors: FieldErrors, volume: PersistentVolume) -> None:
    spec = volume.spec
    if spec is None:
        errors.required("spec")
        return
    _mode(errors, spec.volumeMode)
    for name, text in (spec.capacity or {}).items():
        errors.quantity(f"spec.capacity[{name}]", text)
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
        elif spec.volumeMode == "Block" and kind not in _BLOCK_SOURCES:
            errors.invalid("spec.volumeMode", "Block", f"{kind} volumes are no block devices")
    _sources(errors, spec, (volume.metadata.name if volume.metadata else None) or "")
    for kind in sources:
        if kind in IN_TREE_KINDS:
            from kubelet_trio.sources.validation import clouds  # deferred: few nodes have one

            clouds.persistent(errors, volume, kind, f"spec.{kind}")


def _sources(errors: FieldErrors, spec: PersistentVolumeSpec, name: str) -> None:
    """Check every source that a persistent volume has, but a cloud's."""
    if spec.csi is not None:
        storage.csi_source(errors, spec.csi, "spec.csi")
    if spec.fc is not None:
        disks.fibre_channel(errors, spec.fc, "spec.fc")
    if spec.flexVolume is not None:
        disks.flex(errors, spec.flexVolume, "spec.flexVolume")
    if spec.hostPath is not None:
        host_path(errors, spec.hostPath, "spec.hostPath")
    if spec.iscsi is not None:
        disks.iscsi(errors, spec.iscsi, "spec.iscsi", name)
    if spec.local is not None:
        errors.need("spec.local.path", spec.local.path, syntax.no_way_up)
    if spec.nfs is not None:
        errors.need("spec.nfs.path", spec.nfs.path, syntax.no_way_up)
        nfs(errors, spec.nfs.server, spec.nfs.path, "spec.nfs")


def host_path(errors: FieldErrors, source: HostPathVolumeSource, where: str) -> None:
    """Check a path of the host, and its type."""
    errors.need(f"{where}.path", source.path, syntax.no_way_up)
    errors.one_of(f"{where}.type", source.type, HOST_PATH_TYPES)


def nfs(errors: FieldErrors, server: str, path: str, where: str) -> None:
    """Check the server and the path of an NFS export."""
    if not server:
        errors.required(f"{where}.server")
    if path and not path.startswith("/"):
        errors.invalid(f"{where}.path", path, "must be an absolute path")


def _mode(errors: FieldErrors, mode: str | None) -> None:
    errors.one_of("spec.volumeMode", mode, VOLUME_MODES)
