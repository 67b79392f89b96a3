"""Validation of a pod's volumes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from lightkube.models.core_v1 import (
    DownwardAPIVolumeFile,
    EmptyDirVolumeSource,
    ImageVolumeSource,
    KeyToPath,
    NFSVolumeSource,
    ProjectedVolumeSource,
    Volume,
    VolumeProjection,
)

from kubelet_trio.objects import IN_TREE_KINDS
from kubelet_trio.sources.validation import disks, syntax
from kubelet_trio.sources.validation.env import resource_field
from kubelet_trio.sources.validation.field_errors import FieldErrors
from kubelet_trio.sources.validation.object import config_key, host_path, nfs
from kubelet_trio.sources.validation.storage import csi_inline

MEDIA = ("", "Memory", "HugePages")
PULL_POLICIES = ("Always", "IfNotPresent", "Never")

_SIZED_MEDIUM = "HugePages-"
_MAX_MODE = 0o777
# validVolumeDownwardAPIFieldPathExpressions: a file may also show all labels or annotations.
_FIELDS = re.compile(
    r"metadata\.(name|namespace|uid|labels|annotations)|metadata\.(labels|annotations)\['.+'\]"
)


def validate_volumes(errors: FieldErrors, volumes: Sequence[Volume]) -> frozenset[str]:
    """Check the volumes of a pod and return their names."""
    names: set[str] = set()
    for index, volume in enumerate(volumes):
        path = f"spec.volumes[{index}]"
        errors.need(f"{path}.name", volume.name, syntax.dns_label)
        if volume.name in names:
            errors.duplicate(f"{path}.name", volume.name)
        names.add(volume.name)
        _source(errors, volume, path)
    return frozenset(names)


def _source(errors: FieldErrors, volume: Volume, path: str) -> None:
    kinds = [f for f in volume.__struct_fields__ if f != "name" and getattr(volume, f) is not None]
    for kind in kinds[1:]:
        errors.forbidden(f"{path}.{kind}", "may not specify more than 1 volume type")
    for kind, check in _CHECKS.items():
        source = getattr(volume, kind)
        if source is not None:
            check(errors, source, f"{path}.{kind}")
    for kind in kinds:
        if kind in IN_TREE_KINDS:
            from kubelet_trio.sources.validation import clouds  # deferred: few nodes have one

            clouds.inline(errors, volume, kind, f"{path}.{kind}")


def _empty_dir(errors: FieldErrors, source: EmptyDirVolumeSource, path: str) -> None:
    medium = source.medium or ""
    # `HugePages-2Mi` names the size of a page.
    if medium.startswith(_SIZED_MEDIUM):
        errors.quantity(f"{path}.medium", medium.removeprefix(_SIZED_MEDIUM))
    else:
        errors.one_of(f"{path}.medium", medium, MEDIA)
    if source.sizeLimit is not None:
        errors.quantity(f"{path}.sizeLimit", source.sizeLimit)


def _config_map(errors: FieldErrors, source: object, path: str) -> None:
    _keyed(errors, source, path, "name")


def _secret(errors: FieldErrors, source: object, path: str) -> None:
    _keyed(errors, source, path, "secretName")


def _keyed(errors: FieldErrors, source: object, path: str, name: str) -> None:
    errors.need(f"{path}.{name}", getattr(source, name), syntax.dns_subdomain)
    _mode(errors, getattr(source, "defaultMode", None), f"{path}.defaultMode")
    _items(errors, getattr(source, "items", None) or (), f"{path}.items")


def _items(errors: FieldErrors, items: Iterable[KeyToPath], path: str) -> None:
    for index, item in enumerate(items):
        where = f"{path}[{index}]"
        errors.need(f"{where}.key", item.key, config_key)
        errors.need(f"{where}.path", item.path, file_path)
        _mode(errors, item.mode, f"{where}.mode")


def _downward(errors: FieldErrors, source: object, path: str) -> None:
    _mode(errors, getattr(source, "defaultMode", None), f"{path}.defaultMode")
    _files(errors, getattr(source, "items", None) or (), f"{path}.items")


def _files(errors: FieldErrors, items: Iterable[DownwardAPIVolumeFile], path: str) -> None:
    for index, item in enumerate(items):
        where = f"{path}[{index}]"
        errors.need(f"{where}.path", item.path, file_path)
        _mode(errors, item.mode, f"{where}.mode")
        if item.fieldRef is not None and item.resourceFieldRef is not None:
            errors.invalid(where, item.path, "fieldRef and resourceFieldRef cannot both be set")
        if item.fieldRef is not None:
            errors.check(f"{where}.fieldRef.fieldPath", item.fieldRef.fieldPath, volume_field)
        elif item.resourceFieldRef is not None:
            if not item.resourceFieldRef.containerName:
                errors.required(f"{where}.resourceFieldRef.containerName")
            resource_field(errors, item.resourceFieldRef, f"{where}.resourceFieldRef")
        else:
            errors.required(f"{where}.fieldRef", "one of fieldRef and resourceFieldRef is needed")


def _projected(errors: FieldErrors, source: ProjectedVolumeSource, path: str) -> None:
    _mode(errors, source.defaultMode, f"{path}.defaultMode")
    taken: set[str] = set()
    for index, each in enumerate(source.sources or ()):
        where = f"{path}.sources[{index}]"
        kinds = [f for f in each.__struct_fields__ if getattr(each, f) is not None]
        for kind in kinds[1:]:
            errors.forbidden(
                f"{where}.{kind}", "may not specify more than 1 volume type per source"
            )
        if not kinds:
            errors.required(where, "needs a source")
        _projection(errors, each, where)
        for file in _paths(each):
            if file in taken:
                errors.invalid(where, file, "conflicting duplicate paths")
            taken.add(file)


def _projection(errors: FieldErrors, source: VolumeProjection, path: str) -> None:
    for kind in ("configMap", "secret"):
        inner = getattr(source, kind)
        if inner is not None:
            _keyed(errors, inner, f"{path}.{kind}", "name")
    if source.downwardAPI is not None:
        _files(errors, source.downwardAPI.items or (), f"{path}.downwardAPI.items")


def _paths(source: VolumeProjection) -> list[str]:
    items = [
        item
        for kind in ("configMap", "secret", "downwardAPI")
        if getattr(source, kind) is not None
        for item in getattr(source, kind).items or ()
    ]
    return [item.path for item in items]


def _nfs(errors: FieldErrors, source: NFSVolumeSource, path: str) -> None:
    if not source.path:
        errors.required(f"{path}.path")
    nfs(errors, source.server, source.path, path)


def _image(errors: FieldErrors, source: ImageVolumeSource, path: str) -> None:
    if not source.reference:
        errors.required(f"{path}.reference")
    errors.one_of(f"{path}.pullPolicy", source.pullPolicy, PULL_POLICIES)


def _claim(errors: FieldErrors, source: object, path: str) -> None:
    errors.need(f"{path}.claimName", getattr(source, "claimName", ""), syntax.dns_subdomain)


_CHECKS: dict[str, Callable[[FieldErrors, object, str], None]] = {
    "hostPath": host_path,  # type: ignore[dict-item]  # each check knows its own source
    "emptyDir": _empty_dir,  # type: ignore[dict-item]
    "configMap": _config_map,
    "secret": _secret,
    "downwardAPI": _downward,
    "projected": _projected,  # type: ignore[dict-item]
    "nfs": _nfs,  # type: ignore[dict-item]
    "image": _image,  # type: ignore[dict-item]
    "persistentVolumeClaim": _claim,
    "csi": csi_inline,  # type: ignore[dict-item]
    "fc": disks.fibre_channel,  # type: ignore[dict-item]
    "flexVolume": disks.flex,  # type: ignore[dict-item]
    "iscsi": disks.iscsi,  # type: ignore[dict-item]
}


def volume_field(path: str) -> str | None:
    """Check that a downwardAPI volume may show this pod field."""
    return None if _FIELDS.fullmatch(path) else "is not a field that a volume can show"


def file_path(path: str) -> str | None:
    """Check the path of a file inside a volume."""
    # Names with ".." are reserved for the atomic writer: ..data and its dated directories.
    if path.startswith(".."):
        return "must not start with '..'"
    return syntax.inside_path(path)


def _mode(errors: FieldErrors, mode: int | None, path: str) -> None:
    if mode is not None and not 0 <= mode <= _MAX_MODE:
        errors.invalid(path, mode, "must be a number between 0 and 0777 (octal), both inclusive")
