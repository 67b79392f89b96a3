"""Validation of what CSI needs of a manifest: drivers, storage classes, and sources of volumes.

The rules and texts are the API server's (pkg/apis/storage/validation, pkg/apis/core/validation),
and more of them: without an API server no controller attaches volumes, and nobody issues tokens.
A document that needs one of them is refused now rather than when a pod waits for its volume.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from lightkube.models.core_v1 import (
    CSIPersistentVolumeSource,
    CSIVolumeSource,
    SecretReference,
)
from msgspec.structs import replace

from kubelet_trio.sources.validation import syntax
from kubelet_trio.sources.validation.field_errors import FieldErrors

if TYPE_CHECKING:  # few nodes have such documents, and the models cost memory
    from lightkube.models.storage_v1 import CSIDriver, CSIDriverSpec, StorageClass

FS_GROUP_POLICIES = ("File", "None", "ReadWriteOnceWithFSType")
LIFECYCLES = ("Persistent", "Ephemeral")
RECLAIM_POLICIES = ("Delete", "Retain")
BINDING_MODES = ("Immediate", "WaitForFirstConsumer")

_MAX_DRIVER = 63  # characters: the CSI specification, GetPluginInfo
# The CSI specification allows 128 bytes, but no kubelet checks it, and drivers of clouds need more.
_MAX_HANDLE = 4096
_MAX_PARAMETERS = 512  # maxProvisionerParameterLen
_MAX_PARAMETERS_SIZE = 256 * 1024  # bytes: maxProvisionerParameterSize
_MIN_UPDATE_PERIOD = 10  # seconds
# It becomes an argument of mkfs and mount, and a field of the mount table.
_FS_TYPE = re.compile(r"[A-Za-z0-9][-A-Za-z0-9._+]{0,31}")

_NO_ATTACHER = (
    "no controller attaches volumes to this node: set it to false, "
    "if the driver works without ControllerPublishVolume"
)


def driver_name(text: str) -> str | None:
    """Check the name of a CSI driver: it becomes a directory name."""
    if len(text) > _MAX_DRIVER:
        return f"must be no more than {_MAX_DRIVER} characters"
    # ValidateCSIDriverName lowers it first: upper case is allowed.
    return syntax.dns_subdomain(text.lower())


def fs_type(text: str) -> str | None:
    """Check the name of a file system."""
    if _FS_TYPE.fullmatch(text):
        return None
    return "must be the name of a file system, such as ext4 or xfs"


def default_driver(value: CSIDriver) -> CSIDriver:
    """Return a driver's document with the API server's defaults (SetDefaults_CSIDriver)."""
    spec = value.spec
    return replace(
        value,
        spec=replace(
            spec,
            podInfoOnMount=bool(spec.podInfoOnMount),
            storageCapacity=bool(spec.storageCapacity),
            fsGroupPolicy=spec.fsGroupPolicy or "ReadWriteOnceWithFSType",
            volumeLifecycleModes=spec.volumeLifecycleModes or ["Persistent"],
            requiresRepublish=bool(spec.requiresRepublish),
            seLinuxMount=bool(spec.seLinuxMount),
        ),
    )


def validate_driver(errors: FieldErrors, spec: CSIDriverSpec) -> None:
    """Check the spec of a CSIDriver."""
    if spec.attachRequired is None:
        # The API server's default is true.
        errors.required("spec.attachRequired", _NO_ATTACHER)
    elif spec.attachRequired:
        errors.forbidden("spec.attachRequired", _NO_ATTACHER)
    if spec.tokenRequests:
        errors.forbidden("spec.tokenRequests", "service account tokens need an API server")
    elif spec.serviceAccountTokenInSecrets is not None:
        errors.invalid(
            "spec.serviceAccountTokenInSecrets",
            spec.serviceAccountTokenInSecrets,
            "serviceAccountTokenInSecrets is set but no tokenRequests are specified",
        )
    errors.one_of("spec.fsGroupPolicy", spec.fsGroupPolicy, FS_GROUP_POLICIES)
    for index, mode in enumerate(spec.volumeLifecycleModes or ()):
        errors.one_of(f"spec.volumeLifecycleModes[{index}]", mode, LIFECYCLES)
    errors.at_least(
        "spec.nodeAllocatableUpdatePeriodSeconds",
        spec.nodeAllocatableUpdatePeriodSeconds,
        _MIN_UPDATE_PERIOD,
    )


def validate_storage_class(errors: FieldErrors, value: StorageClass) -> None:
    """Check a storage class. It has no effect: nothing on a node provisions volumes."""
    errors.need("provisioner", value.provisioner.lower(), syntax.qualified_name)
    errors.one_of("reclaimPolicy", value.reclaimPolicy, RECLAIM_POLICIES)
    errors.one_of("volumeBindingMode", value.volumeBindingMode, BINDING_MODES)
    _parameters(errors, value.parameters or {})
    for index, term in enumerate(value.allowedTopologies or ()):
        for number, each in enumerate(term.matchLabelExpressions or ()):
            where = f"allowedTopologies[{index}].matchLabelExpressions[{number}]"
            errors.need(f"{where}.key", each.key, syntax.qualified_name)
            if not each.values:
                errors.required(f"{where}.values")


def _parameters(errors: FieldErrors, parameters: Mapping[str, str]) -> None:
    if len(parameters) > _MAX_PARAMETERS:
        errors.too_many("parameters", len(parameters), _MAX_PARAMETERS)
    if sum(len(k) + len(v) for k, v in parameters.items()) > _MAX_PARAMETERS_SIZE:
        errors.forbidden("parameters", f"larger than {_MAX_PARAMETERS_SIZE} bytes in all")
    if "" in parameters:
        errors.invalid("parameters", "", "field can not be empty.")


def csi_source(errors: FieldErrors, source: CSIPersistentVolumeSource, where: str) -> None:
    """Check the CSI source of a persistent volume."""
    errors.need(f"{where}.driver", source.driver, driver_name)
    errors.need(f"{where}.volumeHandle", source.volumeHandle, _handle)
    _fs_type(errors, source.fsType, where)
    for name in (
        "controllerExpandSecretRef",
        "controllerPublishSecretRef",
        "nodeExpandSecretRef",
        "nodePublishSecretRef",
        "nodeStageSecretRef",
    ):
        reference: SecretReference | None = getattr(source, name)
        if reference is not None:
            errors.need(f"{where}.{name}.name", reference.name, syntax.dns_subdomain)
            errors.need(f"{where}.{name}.namespace", reference.namespace, syntax.dns_label)


def csi_inline(errors: FieldErrors, source: CSIVolumeSource, where: str) -> None:
    """Check an inline (ephemeral) CSI volume of a pod."""
    errors.need(f"{where}.driver", source.driver, driver_name)
    _fs_type(errors, source.fsType, where)
    secret = source.nodePublishSecretRef
    if secret is not None:
        errors.need(f"{where}.nodePublishSecretRef.name", secret.name, syntax.dns_subdomain)


def _fs_type(errors: FieldErrors, value: str | None, where: str) -> None:
    if value:
        errors.check(f"{where}.fsType", value, fs_type)


def _handle(text: str) -> str | None:
    if len(text.encode()) > _MAX_HANDLE:
        return f"must be no more than {_MAX_HANDLE} bytes"
    return None if text.isprintable() else "must not have control characters"
