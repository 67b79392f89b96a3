"""Validation of a container's environment."""

from __future__ import annotations

import re
from collections.abc import Collection

from lightkube.models.core_v1 import (
    Container,
    EnvFromSource,
    EnvVar,
    EnvVarSource,
    FileKeySelector,
    ResourceFieldSelector,
)

from kubelet_trio.sources.validation import syntax
from kubelet_trio.sources.validation.field_errors import FieldErrors
from kubelet_trio.sources.validation.object import config_key

# validEnvDownwardAPIFieldPathExpressions: of labels and annotations only a single key. `spec.host`
# is the old name of `spec.nodeName` (ConvertDownwardAPIFieldLabel).
_FIELDS = re.compile(
    r"metadata\.(name|namespace|uid)|metadata\.(labels|annotations)\['.+'\]"
    r"|spec\.(nodeName|host|serviceAccountName)|status\.(hostIP|hostIPs|podIP|podIPs)"
)
_RESOURCES = re.compile(r"(limits|requests)\.(cpu|memory|ephemeral-storage|hugepages-.+)")
# validContainerResourceDivisorForCPU and ...ForMemory; "0" means 1.
_CPU_DIVISORS = ("0", "1m", "1")
_BYTE_DIVISORS = (
    *("0", "1", "1k", "1M", "1G", "1T", "1P", "1E"),
    *("1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"),
)


def validate_env(
    errors: FieldErrors, container: Container, path: str, empty_dirs: Collection[str]
) -> None:
    """Check `env` and `envFrom`; `fileKeyRef` may only name one of the emptyDir volumes."""
    for index, variable in enumerate(container.env or ()):
        where = f"{path}.env[{index}]"
        _variable(errors, variable, where)
        if variable.valueFrom is not None and variable.valueFrom.fileKeyRef is not None:
            ref, where = variable.valueFrom.fileKeyRef, f"{where}.valueFrom.fileKeyRef"
            _file_key(errors, ref, where, empty_dirs)
    for index, source in enumerate(container.envFrom or ()):
        _env_from(errors, source, f"{path}.envFrom[{index}]")


def _variable(errors: FieldErrors, variable: EnvVar, path: str) -> None:
    errors.need(f"{path}.name", variable.name, syntax.env_name)
    # execve(2) ends a variable at its first NUL.
    if variable.value and "\0" in variable.value:
        errors.invalid(f"{path}.value", variable.value, "must not contain a NUL character")
    if variable.valueFrom is not None:
        if variable.value:
            errors.invalid(f"{path}.valueFrom", "", "may not be specified when value is not empty")
        _value_from(errors, variable.valueFrom, f"{path}.valueFrom")


def _value_from(errors: FieldErrors, source: EnvVarSource, path: str) -> None:
    kinds = [f for f in source.__struct_fields__ if getattr(source, f) is not None]
    if len(kinds) != 1:
        errors.invalid(path, kinds, "must specify one of: fieldRef, resourceFieldRef, "
                       "configMapKeyRef, secretKeyRef or fileKeyRef")  # fmt: skip
    if source.fieldRef is not None:
        where = f"{path}.fieldRef"
        errors.one_of(f"{where}.apiVersion", source.fieldRef.apiVersion, ("v1",))
        errors.need(f"{where}.fieldPath", source.fieldRef.fieldPath, env_field)
    if source.resourceFieldRef is not None:
        resource_field(errors, source.resourceFieldRef, f"{path}.resourceFieldRef")
    for kind in ("configMapKeyRef", "secretKeyRef"):
        ref = getattr(source, kind)
        if ref is not None:
            errors.need(f"{path}.{kind}.name", ref.name, syntax.dns_subdomain)
            errors.need(f"{path}.{kind}.key", ref.key, config_key)


def _file_key(
    errors: FieldErrors, ref: FileKeySelector, path: str, empty_dirs: Collection[str]
) -> None:
    errors.need(f"{path}.key", ref.key, syntax.env_name)
    errors.need(f"{path}.path", ref.path, syntax.inside_path)
    if not ref.volumeName:
        errors.required(f"{path}.volumeName")
    elif ref.volumeName not in empty_dirs:
        errors.invalid(f"{path}.volumeName", ref.volumeName, "must be a volume of type emptyDir")


def _env_from(errors: FieldErrors, source: EnvFromSource, path: str) -> None:
    if source.prefix:
        errors.check(f"{path}.prefix", source.prefix, syntax.env_name)
    refs = {"configMapRef": source.configMapRef, "secretRef": source.secretRef}
    given = {name: ref for name, ref in refs.items() if ref is not None}
    if not given:
        errors.invalid(path, "", "must specify one of: `configMapRef` or `secretRef`")
    if len(given) > 1:
        errors.invalid(path, "", "may not have more than one field specified at a time")
    for name, ref in given.items():
        errors.need(f"{path}.{name}.name", ref.name, syntax.dns_subdomain)


def resource_field(errors: FieldErrors, selector: ResourceFieldSelector, path: str) -> None:
    """Check the name and the divisor of a resource field reference."""
    match = _RESOURCES.fullmatch(selector.resource)
    if match is None:
        detail = "must be limits or requests of cpu, memory, ephemeral-storage or huge pages"
        errors.invalid(f"{path}.resource", selector.resource, detail)
        return
    known = _CPU_DIVISORS if match[2] == "cpu" else _BYTE_DIVISORS
    errors.one_of(f"{path}.divisor", selector.divisor, known)


def env_field(path: str) -> str | None:
    """Check that an environment variable may show this pod field."""
    return None if _FIELDS.fullmatch(path) else "is not a field that a variable can show"
