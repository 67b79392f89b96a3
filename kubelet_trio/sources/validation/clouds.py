"""Validation of volumes of the clouds' in-tree kinds, which CSI drivers mount.

The rules are the API server's (pkg/apis/core/validation). In addition each source must be one that
can be translated for its CSI driver: better the manifest is refused now than the pod's mount later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lightkube.models.core_v1 import AzureDiskVolumeSource, PersistentVolume, Volume

from kubelet_trio.objects import inline_as_csi, persistent_as_csi
from kubelet_trio.sources.validation import storage, syntax
from kubelet_trio.sources.validation.field_errors import FieldErrors

CACHING_MODES = ("None", "ReadOnly", "ReadWrite")
_MANAGED = "Managed"
_MANAGED_DISK = "/subscriptions/"
_MANAGED_DISKS = (
    "/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/"
    "{disk-id}",
)
_MAX_PARTITION = 255
_REQUIRED: Mapping[str, tuple[str, ...]] = {
    "awsElasticBlockStore": ("volumeID",),
    "azureDisk": ("diskName", "diskURI"),
    "azureFile": ("secretName", "shareName"),
    "cinder": ("volumeID",),
    "gcePersistentDisk": ("pdName",),
    "portworxVolume": ("volumeID",),
    "vsphereVolume": ("volumePath",),
}


def cloud_source(errors: FieldErrors, kind: str, source: Any, path: str) -> None:
    """Check the source of a pod's or a persistent volume, without translating it.

    Args:
        errors: gets what is wrong.
        kind: its field of a Volume or of a PersistentVolumeSpec.
        source: the source.
        path: its path in the document.
    """
    for field in _REQUIRED[kind]:
        if not getattr(source, field):
            errors.required(f"{path}.{field}")
    partition = getattr(source, "partition", None)
    if partition is not None:
        errors.within(f"{path}.partition", partition, 0, _MAX_PARTITION)
    if getattr(source, "fsType", None):
        errors.check(f"{path}.fsType", source.fsType, storage.fs_type)
    if kind == "azureDisk":
        _azure_disk(errors, source, path)
    if kind == "azureFile":
        _azure_file(errors, source, path)
    if kind == "cinder":
        _secret(errors, source.secretRef, f"{path}.secretRef")


def inline(errors: FieldErrors, volume: Volume, kind: str, path: str) -> None:
    """Check a pod's volume of such a kind."""
    known = len(errors.found)
    cloud_source(errors, kind, getattr(volume, kind), path)
    if len(errors.found) == known:
        # Of the namespace, no rule depends on more than that there is one.
        _translate(errors, lambda: inline_as_csi(volume, "default"), path)


def persistent(errors: FieldErrors, volume: PersistentVolume, kind: str, path: str) -> None:
    """Check a persistent volume of such a kind."""
    known = len(errors.found)
    cloud_source(errors, kind, getattr(volume.spec, kind), path)
    if len(errors.found) == known:
        _translate(errors, lambda: persistent_as_csi(volume), path)


def _translate(errors: FieldErrors, translate: Callable[[], object], path: str) -> None:
    try:
        translate()
    except ValueError as exc:
        errors.forbidden(path, str(exc))


def _azure_disk(errors: FieldErrors, source: AzureDiskVolumeSource, path: str) -> None:
    errors.one_of(f"{path}.cachingMode", source.cachingMode, CACHING_MODES)
    if source.kind is None:
        # The API server's default is Shared, which nothing mounts any more.
        errors.required(f"{path}.kind", f"must be {_MANAGED}")
        return
    errors.one_of(f"{path}.kind", source.kind, (_MANAGED,))
    if source.kind == _MANAGED and source.diskURI and not source.diskURI.startswith(_MANAGED_DISK):
        errors.unsupported(f"{path}.diskURI", source.diskURI, _MANAGED_DISKS)


def _azure_file(errors: FieldErrors, source: Any, path: str) -> None:
    # They are the name of an object, and its namespace, which persistent volumes alone may give.
    if source.secretName:
        errors.check(f"{path}.secretName", source.secretName, syntax.dns_subdomain)
    namespace = getattr(source, "secretNamespace", None)
    if namespace is not None:
        errors.need(f"{path}.secretNamespace", namespace, syntax.dns_label)


def _secret(errors: FieldErrors, reference: Any, path: str) -> None:
    if reference is None:
        return
    errors.need(f"{path}.name", reference.name, syntax.dns_subdomain)
    if hasattr(reference, "namespace"):
        errors.need(f"{path}.namespace", reference.namespace, syntax.dns_label)
