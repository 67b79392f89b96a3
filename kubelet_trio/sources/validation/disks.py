"""Validation of volumes that a disk, a file server or a host's driver provides.

One check for each kind, for volumes of pods and for persistent volumes: what only one of them has
is checked if it is there. The rules are the API server's (pkg/apis/core/validation).
"""

from __future__ import annotations

import re
from typing import Any

from lightkube.models.core_v1 import (
    FCVolumeSource,
    FlexPersistentVolumeSource,
    FlexVolumeSource,
    ISCSIPersistentVolumeSource,
    ISCSIVolumeSource,
)

from kubelet_trio.sources.validation import storage, syntax
from kubelet_trio.sources.validation.field_errors import FieldErrors

_MAX_LUN = 255
_MAX_INTERFACE = 64  # bytes of `<volume>:<portal>`, which open-iscsi limits
_TARGETS = {
    "iqn": re.compile(r"iqn\.\d{4}-\d{2}\.[A-Za-z0-9.-]+:[^,;*&$|\s]+", re.ASCII),
    "eui": re.compile(r"eui.[A-Za-z0-9]{16}"),
    "naa": re.compile(r"naa.[A-Za-z0-9]{32}"),
}
_RESERVED = (".kubernetes.io", ".k8s.io")


def iscsi(
    errors: FieldErrors,
    source: ISCSIVolumeSource | ISCSIPersistentVolumeSource,
    path: str,
    volume: str = "",
) -> None:
    """Check an iSCSI source (validateISCSIVolumeSource, validateISCSIPersistentVolumeSource).

    Args:
        errors: gets what is wrong.
        source: the source.
        path: its path in the document.
        volume: the name of the persistent volume; "" for a volume of a pod.
    """
    if not source.targetPortal:
        errors.required(f"{path}.targetPortal")
    if volume and source.initiatorName is not None:
        _interface(errors, f"{volume}:{source.targetPortal}", source.targetPortal, path)
    errors.need(f"{path}.iqn", source.iqn, iscsi_name)
    errors.within(f"{path}.lun", source.lun, 0, _MAX_LUN)
    if (source.chapAuthDiscovery or source.chapAuthSession) and source.secretRef is None:
        errors.required(f"{path}.secretRef")
    _secret(errors, source.secretRef, path)
    if source.initiatorName is not None:
        errors.check(f"{path}.initiatorName", source.initiatorName, iscsi_name)
    _fs_type(errors, source.fsType, path)


def iscsi_name(text: str) -> str | None:
    """Check the name of an iSCSI target or initiator."""
    rule = _TARGETS.get(text[:3])
    if rule is None:
        return "must be valid format starting with iqn, eui, or naa"
    return None if rule.fullmatch(text) else "must be valid format"


def _interface(errors: FieldErrors, name: str, portal: str, path: str) -> None:
    if len(name.encode()) > _MAX_INTERFACE:
        errors.invalid(
            f"{path}.targetPortal",
            portal,
            "Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters "
            "if iscsi.initiatorName is specified.",
        )


def fibre_channel(errors: FieldErrors, source: FCVolumeSource, path: str) -> None:
    """Check a Fibre Channel source (validateFCVolumeSource)."""
    targets, ids = source.targetWWNs or [], source.wwids or []
    if not targets and not ids:
        errors.required(
            f"{path}.targetWWNs", "must specify either targetWWNs or wwids, but not both"
        )
    if targets and ids:
        errors.invalid(
            f"{path}.targetWWNs",
            ", ".join(targets),
            "targetWWNs and wwids can not be specified simultaneously",
        )
    if targets and source.lun is None:
        errors.required(f"{path}.lun", "lun is required if targetWWNs is specified")
    elif targets and source.lun is not None:
        errors.within(f"{path}.lun", source.lun, 0, _MAX_LUN)
    _fs_type(errors, source.fsType, path)


def flex(
    errors: FieldErrors, source: FlexVolumeSource | FlexPersistentVolumeSource, path: str
) -> None:
    """Check a FlexVolume source (validateFlexVolumeSource)."""
    if not source.driver:
        errors.required(f"{path}.driver")
    for key in source.options or ():
        # Options of these namespaces are the kubelet's, and reach the driver as if it had set them.
        if f".{key.partition('/')[0].lower()}".endswith(_RESERVED):
            errors.invalid(
                f"{path}.options[{key}]", key, "kubernetes.io and k8s.io namespaces are reserved"
            )
    _secret(errors, source.secretRef, path)


def _fs_type(errors: FieldErrors, value: str | None, path: str) -> None:
    # The API server takes anything; here it is an argument of mkfs and mount.
    if value:
        errors.check(f"{path}.fsType", value, storage.fs_type)


def _secret(errors: FieldErrors, reference: Any, path: str) -> None:
    """Check a reference to a secret, of a pod's namespace or with one."""
    if reference is None:
        return
    errors.need(f"{path}.secretRef.name", reference.name, syntax.dns_subdomain)
    namespace = getattr(reference, "namespace", None)
    if namespace:
        errors.check(f"{path}.secretRef.namespace", namespace, syntax.dns_label)
