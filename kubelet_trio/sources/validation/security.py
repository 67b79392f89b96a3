"""Validation of security contexts, sysctls, and conflicts with a user namespace.

Admission checks what depends on the node: allowed sysctls, features of kernel and runtime.
"""

from __future__ import annotations

import re

from lightkube.models.core_v1 import (
    AppArmorProfile,
    Container,
    PodSecurityContext,
    PodSpec,
    SeccompProfile,
    SecurityContext,
)

from kubelet_trio.sources.validation import syntax
from kubelet_trio.sources.validation.field_errors import FieldErrors

FS_GROUP_CHANGE_POLICIES = ("Always", "OnRootMismatch")
GROUPS_POLICIES = ("Merge", "Strict")
PROFILE_TYPES = ("Localhost", "RuntimeDefault", "Unconfined")
PROC_MOUNTS = ("Default", "Unmasked")

# IsValidUserID in apimachinery: int32, although the kernel's IDs go up to 2^32-2.
_MAX_ID = 2**31 - 1
_MAX_PROFILE = 4095  # PATH_MAX without its terminating NUL
_MAX_SYSCTL = 253
# SysctlContainSlashFmt: names with dots or slashes between segments.
_SYSCTL = re.compile(r"([a-z0-9]([-_a-z0-9]*[a-z0-9])?[./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?")
_ESCALATION = "cannot set `allowPrivilegeEscalation` to false and "
_NO_USERNS = "must not be set where `hostUsers` is false"
_WINDOWS = "Windows options are for nodes that run Windows"


def validate_pod_security(errors: FieldErrors, spec: PodSpec) -> None:
    """Check a pod's own security context and its namespaces."""
    context, path = spec.securityContext or PodSecurityContext(), "spec.securityContext"
    for name in ("runAsUser", "runAsGroup", "fsGroup"):
        _id(errors, getattr(context, name), f"{path}.{name}")
    for index, group in enumerate(context.supplementalGroups or ()):
        _id(errors, group, f"{path}.supplementalGroups[{index}]")
    policy = context.fsGroupChangePolicy
    errors.one_of(f"{path}.fsGroupChangePolicy", policy, FS_GROUP_CHANGE_POLICIES)
    policy = context.supplementalGroupsPolicy
    errors.one_of(f"{path}.supplementalGroupsPolicy", policy, GROUPS_POLICIES)
    if context.windowsOptions is not None:
        errors.forbidden(f"{path}.windowsOptions", _WINDOWS)
    _sysctls(errors, context, f"{path}.sysctls")
    _seccomp(errors, context.seccompProfile, f"{path}.seccompProfile")
    _apparmor(errors, context.appArmorProfile, f"{path}.appArmorProfile")
    if spec.hostUsers is False:
        for name in ("hostNetwork", "hostPID", "hostIPC"):
            if getattr(spec, name):
                errors.forbidden(f"spec.{name}", _NO_USERNS)


def validate_container_security(
    errors: FieldErrors, container: Container, path: str, *, own_users: bool
) -> None:
    """Check a container's security context; `own_users`: its pod has a user namespace."""
    context, where = container.securityContext, f"{path}.securityContext"
    if own_users and container.volumeDevices:
        errors.forbidden(f"{path}.volumeDevices", _NO_USERNS)
    if context is None:
        return
    for name in ("runAsUser", "runAsGroup"):
        _id(errors, getattr(context, name), f"{where}.{name}")
    if context.windowsOptions is not None:
        errors.forbidden(f"{where}.windowsOptions", _WINDOWS)
    errors.one_of(f"{where}.procMount", context.procMount, PROC_MOUNTS)
    if context.procMount == "Unmasked" and not own_users:
        errors.invalid(f"{where}.procMount", "Unmasked", "`hostUsers` must be false to use it")
    _escalation(errors, context, where)
    _seccomp(errors, context.seccompProfile, f"{where}.seccompProfile")
    _apparmor(errors, context.appArmorProfile, f"{where}.appArmorProfile")


def _escalation(errors: FieldErrors, context: SecurityContext, path: str) -> None:
    if context.allowPrivilegeEscalation is not False:
        return
    added = context.capabilities.add if context.capabilities is not None else None
    # With these two it is always true (SecurityContext in the API reference).
    path = f"{path}.allowPrivilegeEscalation"
    if context.privileged:
        errors.invalid(path, False, f"{_ESCALATION}`privileged` to true")
    # Upstream compares with this spelling only, though manifests leave out CAP_
    # (ValidateSecurityContext in pkg/apis/core/validation).
    if "CAP_SYS_ADMIN" in (added or ()):
        errors.invalid(path, False, f"{_ESCALATION}`capabilities.Add` CAP_SYS_ADMIN")


def _id(errors: FieldErrors, value: int | None, path: str) -> None:
    if value is not None:
        errors.within(path, value, 0, _MAX_ID)


def _sysctls(errors: FieldErrors, context: PodSecurityContext, path: str) -> None:
    seen: set[str] = set()
    for index, sysctl in enumerate(context.sysctls or ()):
        where = f"{path}[{index}].name"
        errors.need(where, sysctl.name, _sysctl_name)
        # sysctl(8) accepts both separators: a/b and a.b are the same sysctl.
        dotted = sysctl.name.replace("/", ".")
        if dotted in seen:
            errors.duplicate(where, sysctl.name)
        seen.add(dotted)


def _sysctl_name(text: str) -> str | None:
    if len(text) <= _MAX_SYSCTL and _SYSCTL.fullmatch(text):
        return None
    return f"must be up to {_MAX_SYSCTL} characters: names with dots or slashes between them"


def _is_localhost(
    errors: FieldErrors, profile: SeccompProfile | AppArmorProfile, field: str, path: str
) -> bool:
    """Check a profile's type; return whether it is Localhost, which needs a name."""
    if not profile.type:
        errors.required(f"{path}.type", f"a type is required where {field} is set")
        return False
    errors.one_of(f"{path}.type", profile.type, PROFILE_TYPES)
    if profile.type == "Localhost":
        return True
    if (name := profile.localhostProfile) is not None:
        errors.invalid(f"{path}.localhostProfile", name, "is for the type Localhost only")
    return False


def _seccomp(errors: FieldErrors, profile: SeccompProfile | None, path: str) -> None:
    if profile is None or not _is_localhost(errors, profile, "seccompProfile", path):
        return
    name = profile.localhostProfile
    if not name:
        errors.required(f"{path}.localhostProfile", "must be set where the type is Localhost")
    else:
        errors.check(f"{path}.localhostProfile", name, syntax.inside_path)


def _apparmor(errors: FieldErrors, profile: AppArmorProfile | None, path: str) -> None:
    if profile is None or not _is_localhost(errors, profile, "appArmorProfile", path):
        return
    name = profile.localhostProfile
    if not (name or "").strip():
        errors.required(f"{path}.localhostProfile", "must be set where the type is Localhost")
    elif name is not None and name != name.strip():
        errors.invalid(f"{path}.localhostProfile", name, "must not have space around it")
    elif name is not None and len(name) > _MAX_PROFILE:
        errors.invalid(f"{path}.localhostProfile", name, f"longer than {_MAX_PROFILE} characters")
