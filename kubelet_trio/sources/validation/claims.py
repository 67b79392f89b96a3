"""Validates what devices are claimed with: classes, claims, their templates, and slices.

The rules and limits are those of pkg/apis/resource/validation. CEL expressions are compiled when
they are first used.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any, TypeAlias

import msgspec
from lightkube.models.resource_v1 import (
    Device,
    DeviceClaim,
    DeviceClass,
    DeviceClassSpec,
    DeviceRequest,
    DeviceSelector,
    DeviceSubRequest,
    ExactDeviceRequest,
    OpaqueDeviceConfiguration,
    ResourceClaim,
    ResourceClaimSpec,
    ResourceClaimTemplate,
    ResourceClaimTemplateSpec,
    ResourceSlice,
    ResourceSliceSpec,
)

from kubelet_trio.sources.validation import syntax
from kubelet_trio.sources.validation.field_errors import FieldErrors

DeviceObject: TypeAlias = DeviceClass | ResourceClaim | ResourceClaimTemplate | ResourceSlice

_MODES = ("ExactCount", "All")
_EFFECTS = ("NoSchedule", "NoExecute", "None")
_OPERATORS = ("Equal", "Exists")
_MANY = 32  # requests, selectors, constraints, configurations; attributes with capacities
_ALTERNATIVES = 8
_DEVICES = 128
_COSTLY_DEVICES = 64  # with taints or counters
_COUNTER_SETS = 8
_EXPRESSION = 10 * 1024  # characters
_TEXT = 64  # characters of an attribute
_LONGEST_POOL = 253
_SEMVER = re.compile(r"(0|[1-9]\d*)(\.(0|[1-9]\d*)){2}(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}")  # a C identifier
_WHERE = ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection")


def validate(errors: FieldErrors, value: DeviceObject) -> None:
    """Add the errors of a document's spec."""
    if isinstance(value, DeviceClass):
        spec = value.spec or DeviceClassSpec()
        _selectors(errors, spec.selectors, "spec.selectors")
        _at_most(errors, "spec.config", spec.config, _MANY)
        for index, each in enumerate(spec.config or ()):
            _opaque(errors, each.opaque, f"spec.config[{index}].opaque")
    elif isinstance(value, ResourceClaim):
        _claim(errors, value.spec or ResourceClaimSpec(), "spec")
    elif isinstance(value, ResourceClaimTemplate):
        inner = value.spec or ResourceClaimTemplateSpec()
        if inner.metadata is not None and inner.metadata.name:
            errors.forbidden("spec.metadata.name", "each pod's claim has a name of its own")
        _claim(errors, inner.spec or ResourceClaimSpec(), "spec.spec")
    else:
        _slice(errors, value.spec)


def _at_most(errors: FieldErrors, path: str, items: Sequence[Any] | None, most: int) -> None:
    if items is not None and len(items) > most:
        errors.too_many(path, len(items), most)


def _selectors(errors: FieldErrors, given: Sequence[DeviceSelector] | None, path: str) -> None:
    _at_most(errors, path, given, _MANY)
    for index, each in enumerate(given or ()):
        where = f"{path}[{index}].cel"
        if each.cel is None:
            errors.required(where)
        elif not each.cel.expression:
            errors.required(f"{where}.expression")
        elif len(each.cel.expression) > _EXPRESSION:
            errors.invalid(
                f"{where}.expression", "(long)", f"must be no more than {_EXPRESSION} characters"
            )


def _opaque(errors: FieldErrors, given: OpaqueDeviceConfiguration | None, path: str) -> None:
    if given is None:
        errors.required(path, "exactly one configuration")
    else:
        errors.need(f"{path}.driver", given.driver, syntax.dns_subdomain)


def _claim(errors: FieldErrors, spec: ResourceClaimSpec, path: str) -> None:
    devices, where = spec.devices or DeviceClaim(), f"{path}.devices"
    requests = devices.requests or []
    names: set[str] = set()
    _at_most(errors, f"{where}.requests", requests, _MANY)
    for index, request in enumerate(requests):
        at = f"{where}.requests[{index}]"
        _name(errors, f"{at}.name", request.name, names)
        names.update(_request(errors, request, at))
    _at_most(errors, f"{where}.constraints", devices.constraints, _MANY)
    for index, constraint in enumerate(devices.constraints or ()):
        at = f"{where}.constraints[{index}]"
        given = [constraint.matchAttribute, constraint.distinctAttribute]
        if sum(one is not None for one in given) != 1:
            errors.invalid(
                at, "", "exactly one of matchAttribute and distinctAttribute is required"
            )
        for field, attribute in zip(("matchAttribute", "distinctAttribute"), given, strict=True):
            if attribute is not None:
                errors.check(f"{at}.{field}", attribute, _full_name)
        _known(errors, f"{at}.requests", constraint.requests, names)
    _at_most(errors, f"{where}.config", devices.config, _MANY)
    for index, config in enumerate(devices.config or ()):
        at = f"{where}.config[{index}]"
        _known(errors, f"{at}.requests", config.requests, names)
        _opaque(errors, config.opaque, f"{at}.opaque")


def _name(errors: FieldErrors, path: str, name: str, names: set[str]) -> None:
    errors.need(path, name, syntax.dns_label)
    if name in names:
        errors.duplicate(path, name)
    names.add(name)


def _known(
    errors: FieldErrors, path: str, given: Sequence[str] | None, names: Collection[str]
) -> None:
    for index, name in enumerate(given or ()):
        if name not in names:
            errors.invalid(
                f"{path}[{index}]", name, "must be the name of a request, or request/subrequest"
            )


def _request(errors: FieldErrors, request: DeviceRequest, path: str) -> list[str]:
    """Check a request; return the names of its alternatives."""
    alternatives = request.firstAvailable
    if (request.exactly is None) == (not alternatives):
        errors.invalid(path, "", "exactly one of exactly and firstAvailable is required")
    if request.exactly is not None:
        _wish(errors, request.exactly, f"{path}.exactly")
    _at_most(errors, f"{path}.firstAvailable", alternatives, _ALTERNATIVES)
    names: set[str] = set()
    for index, each in enumerate(alternatives or ()):
        at = f"{path}.firstAvailable[{index}]"
        _name(errors, f"{at}.name", each.name, names)
        _wish(errors, each, at)
    return [f"{request.name}/{name}" for name in names]


def _wish(errors: FieldErrors, wish: ExactDeviceRequest | DeviceSubRequest, path: str) -> None:
    errors.need(f"{path}.deviceClassName", wish.deviceClassName, syntax.dns_subdomain)
    errors.one_of(f"{path}.allocationMode", wish.allocationMode, _MODES)
    if wish.allocationMode == "All" and wish.count:
        errors.invalid(f"{path}.count", wish.count, "must not be set with allocationMode All")
    if wish.allocationMode != "All":
        errors.at_least(f"{path}.count", wish.count, 1)
    _selectors(errors, wish.selectors, f"{path}.selectors")
    if wish.derivedAttributes:
        errors.forbidden(f"{path}.derivedAttributes", "not supported by this agent yet")
    for index, toleration in enumerate(wish.tolerations or ()):
        at = f"{path}.tolerations[{index}]"
        errors.one_of(f"{at}.operator", toleration.operator, _OPERATORS)
        errors.one_of(f"{at}.effect", toleration.effect, _EFFECTS[:2])
    for name, text in ((wish.capacity.requests if wish.capacity else None) or {}).items():
        errors.quantity(f"{path}.capacity.requests[{name}]", text)


def _slice(errors: FieldErrors, spec: ResourceSliceSpec) -> None:
    errors.need("spec.driver", spec.driver, syntax.dns_subdomain)
    errors.need("spec.pool.name", spec.pool.name, _pool_name)
    errors.at_least("spec.pool.generation", spec.pool.generation, 0)
    errors.at_least("spec.pool.resourceSliceCount", spec.pool.resourceSliceCount, 1)
    chosen = [field for field in _WHERE if getattr(spec, field)]
    if len(chosen) != 1:
        errors.invalid("spec", "", f"exactly one of {', '.join(_WHERE)} is required")
    if spec.devices and spec.sharedCounters:
        errors.invalid("spec", "", "only one of devices and sharedCounters may be set")
    devices = spec.devices or []
    costly = any(each.taints or each.consumesCounters for each in devices)
    _at_most(errors, "spec.devices", devices, _COSTLY_DEVICES if costly else _DEVICES)
    names: set[str] = set()
    for index, device in enumerate(devices[:_DEVICES]):
        at = f"spec.devices[{index}]"
        _name(errors, f"{at}.name", device.name, names)
        _device(errors, device, at)
    _at_most(errors, "spec.sharedCounters", spec.sharedCounters, _COUNTER_SETS)
    sets: set[str] = set()
    for index, one in enumerate(spec.sharedCounters or ()):
        at = f"spec.sharedCounters[{index}]"
        _name(errors, f"{at}.name", one.name, sets)
        _counters(errors, one.counters, f"{at}.counters")


def _device(errors: FieldErrors, device: Device, path: str) -> None:
    attributes, capacity = device.attributes or {}, device.capacity or {}
    if len(attributes) + len(capacity) > _MANY:
        errors.too_many(f"{path}.attributes", len(attributes) + len(capacity), _MANY)
    for name, raw in attributes.items():
        at = f"{path}.attributes[{name}]"
        errors.check(at, name, _qualified_name)
        given = {key: value for key, value in _fields(raw).items() if value is not None}
        if len(given) != 1:
            errors.invalid(at, "", "exactly one value must be specified")
        for key, value in given.items():
            for text in value if isinstance(value, list) else [value]:
                _attribute(errors, f"{at}.{key}", key, text)
    for name, raw in capacity.items():
        at = f"{path}.capacity[{name}]"
        errors.check(at, name, _qualified_name)
        errors.quantity(f"{at}.value", _fields(raw).get("value", ""))
    for index, taint in enumerate(device.taints or ()):
        at = f"{path}.taints[{index}]"
        errors.need(f"{at}.key", taint.key, syntax.qualified_name)
        errors.one_of(f"{at}.effect", taint.effect, _EFFECTS)
    for index, use in enumerate(device.consumesCounters or ()):
        at = f"{path}.consumesCounters[{index}]"
        errors.need(f"{at}.counterSet", use.counterSet, syntax.dns_label)
        _counters(errors, use.counters, f"{at}.counters")


def _attribute(errors: FieldErrors, path: str, key: str, value: Any) -> None:
    if not isinstance(value, str):
        return
    if len(value) > _TEXT:
        errors.invalid(path, value, f"must be no more than {_TEXT} characters")
    elif key.startswith("version") and not _SEMVER.fullmatch(value):
        errors.invalid(path, value, "must be a version such as 1.2.3 (semver.org 2.0.0)")


def _counters(errors: FieldErrors, counters: dict[str, Any], path: str) -> None:
    if not counters:
        errors.required(path)
    for name, raw in counters.items():
        errors.check(f"{path}[{name}]", name, syntax.dns_label)
        errors.quantity(f"{path}[{name}].value", _fields(raw).get("value", ""))


def _fields(raw: Any) -> dict[str, Any]:
    # The models have plain maps here, and what is in them stays as it was decoded.
    fields: dict[str, Any] = raw if isinstance(raw, dict) else msgspec.to_builtins(raw)
    return fields


def _pool_name(text: str) -> str | None:
    if len(text) > _LONGEST_POOL:
        return f"must be no more than {_LONGEST_POOL} characters"
    return next((e for part in text.split("/") if (e := syntax.dns_subdomain(part))), None)


def _qualified_name(text: str) -> str | None:
    domain, slash, name = text.rpartition("/")
    if slash and syntax.dns_subdomain(domain) is not None:
        return "the part before the slash must be a DNS name"
    if not _IDENTIFIER.fullmatch(name):
        return "must be a C identifier of up to 32 characters, with a domain before it or none"
    return None


def _full_name(text: str) -> str | None:
    return _qualified_name(text) if "/" in text else "must include a domain: example.com/name"
