"""Rules of ResourceSlice: the pool, its devices, and which nodes can use them.

Source: ValidateResourceSlice in pkg/apis/resource/validation. Policies of consumable capacity and
mappings to resources of nodes are not checked.
"""

from __future__ import annotations

import re

from kubelet_trio.testing.kube.rules.claims import (
    check_driver,
    check_label,
    check_pool,
    check_set,
)
from kubelet_trio.testing.kube.rules.formats import subdomain
from kubelet_trio.testing.kube.rules.problems import IMMUTABLE, Problems
from kubelet_trio.testing.kube.store import Json

_MOST_DEVICES, _MOST_OF_ADVANCED, _MOST_VALUES, _MOST_COUNTERS = 128, 64, 32, 8
_MOST_TAINTS = 16
_MOST_ID, _MOST_VALUE = 32, 64  # characters
_EFFECTS = ("NoExecute", "NoSchedule", "None")
_NODES = ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection")
_ONE = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required"
_ONLY_PER_DEVICE = (
    "`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set "
    "to true in the ResourceSlice spec"
)
_ONE_OF_DEVICE = (
    "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when "
    "`perDeviceNodeSelection` is set to true in the ResourceSlice spec"
)
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_IDENTIFIER_TEXT = (
    "a valid C identifier must start with alphabetic character or '_', followed by a string of "
    "alphanumeric characters or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName', regex used for "
    "validation is '[A-Za-z_][A-Za-z0-9_]*')"
)
_NUMBER, _BUILD = r"(0|[1-9]\d*)", r"[0-9a-zA-Z-]+"
_PRE = rf"({_NUMBER}|\d*[a-zA-Z-][0-9a-zA-Z-]*)"
_VERSION = re.compile(
    rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}(-{_PRE}(\.{_PRE})*)?(\+{_BUILD}(\.{_BUILD})*)?"
)


def check_slice(problems: Problems, obj: Json) -> None:
    spec = obj.get("spec") or {}
    check_driver(problems, "spec.driver", spec.get("driver") or "")
    _check_pool(problems, spec.get("pool") or {})
    _check_nodes(problems, spec)
    devices, counters = spec.get("devices") or [], spec.get("sharedCounters") or []
    if devices and counters:
        problems.invalid("spec", "", "only one of `sharedCounters` or `devices` is allowed")
    advanced = any(d.get("taints") or d.get("consumesCounters") for d in devices)
    most = _MOST_OF_ADVANCED if advanced else _MOST_DEVICES
    if check_set(problems, "spec.devices", devices, most, lambda d: d.get("name")):
        for at, device in enumerate(devices):
            per_device = bool(spec.get("perDeviceNodeSelection"))
            _check_device(problems, f"spec.devices[{at}]", device, per_device=per_device)
    path = "spec.sharedCounters"
    if check_set(problems, path, counters, _MOST_COUNTERS, lambda c: c.get("name")):
        for at, one in enumerate(counters):
            check_label(problems, f"{path}[{at}].name", one.get("name") or "")
            if not one.get("counters"):
                problems.required(f"{path}[{at}].counters")


def check_changed_slice(problems: Problems, old: Json, new: Json) -> None:
    """Check a change: driver, name of the pool and node are immutable."""
    was, now = old.get("spec") or {}, new.get("spec") or {}
    check_slice(problems, new)
    for path in ("pool.name", "driver", "nodeName"):
        first, _, field = path.rpartition(".")
        before, after = ((s.get(first) or {} if first else s).get(field) for s in (was, now))
        if before != after:
            problems.invalid(f"spec.{path}", after, IMMUTABLE)


def _check_pool(problems: Problems, pool: Json) -> None:
    check_pool(problems, "spec.pool.name", pool.get("name") or "")
    if (count := pool.get("resourceSliceCount") or 0) <= 0:
        problems.invalid("spec.pool.resourceSliceCount", count, "must be greater than zero")
    if (generation := pool.get("generation") or 0) < 0:
        text = "must be greater than or equal to zero"
        problems.invalid("spec.pool.generation", generation, text)


def _check_nodes(problems: Problems, spec: Json) -> None:
    name, selector = spec.get("nodeName"), spec.get("nodeSelector")
    if name == "":
        text = "must be either unset or set to a non-empty string"
        problems.invalid("spec.nodeName", name, text)
    for text in subdomain(name) if name else ():
        problems.invalid("spec.nodeName", name, text)
    terms = (selector or {}).get("nodeSelectorTerms") or []
    if selector is not None and len(terms) != 1:
        path = "spec.nodeSelector.nodeSelectorTerms"
        problems.invalid(path, terms, "must have exactly one node selector term")
    for field in ("allNodes", "perDeviceNodeSelection"):
        if spec.get(field) is False:
            problems.invalid(f"spec.{field}", False, "must be either unset or set to true")
    given = [f"`{field}`" for field in _NODES if spec.get(field)]
    if not given:
        problems.required("spec", _ONE)
    elif len(given) > 1:
        text = f"{_ONE}, but multiple fields are set"
        problems.invalid("spec", f"{{{', '.join(given)}}}", text)


def _check_device(problems: Problems, path: str, device: Json, *, per_device: bool) -> None:
    check_label(problems, f"{path}.name", device.get("name") or "")
    attributes, capacity = device.get("attributes") or {}, device.get("capacity") or {}
    if (count := len(attributes) + len(capacity)) > _MOST_VALUES:
        text = f"the total number of attributes and capacities must not exceed {_MOST_VALUES}"
        problems.invalid(path, count, text)
    for field, values in (("attributes", attributes), ("capacity", capacity)):
        for key in values:
            _check_qualified(problems, f"{path}.{field}", key)
    for key, attribute in attributes.items():
        _check_attribute(problems, f"{path}.attributes[{key}]", attribute)
    for key, amount in capacity.items():
        if amount.get("requestPolicy") and not device.get("allowMultipleAllocations"):
            where = f"{path}.capacity[{key}].requestPolicy"
            problems.forbidden(where, "allowMultipleAllocations must be true")
    taints = device.get("taints") or []
    if check_set(problems, f"{path}.taints", taints, _MOST_TAINTS, None):
        for at, taint in enumerate(taints):
            _check_taint(problems, f"{path}.taints[{at}]", taint)
    given = [f"`{f}`" for f in ("nodeName", "nodeSelector", "allNodes") if device.get(f)]
    if given and not per_device:
        problems.invalid(path, None, _ONLY_PER_DEVICE)
    elif per_device and not given:
        problems.required(path, _ONE_OF_DEVICE)
    elif len(given) > 1:
        problems.invalid(path, f"{{{', '.join(given)}}}", _ONE_OF_DEVICE)


def _check_taint(problems: Problems, path: str, taint: Json) -> None:
    if not taint.get("key"):
        problems.required(f"{path}.key")
    effect = taint.get("effect") or ""
    if not effect:
        problems.required(f"{path}.effect")
    elif effect not in _EFFECTS:
        problems.unsupported(f"{path}.effect", effect, _EFFECTS)


def _check_attribute(problems: Problems, path: str, attribute: Json) -> None:
    given = [f for f in ("bool", "int", "string", "version") if attribute.get(f) is not None]
    if len(given) != 1:
        problems.invalid(path, attribute or "", "exactly one value must be specified")
        return
    value = attribute[given[0]]
    if given[0] in ("string", "version") and len(value.encode()) > _MOST_VALUE:
        problems.too_long(f"{path}.{given[0]}", _MOST_VALUE)
    if given[0] == "version" and not _VERSION.fullmatch(value):
        text = "must be a string compatible with semver.org spec 2.0.0"
        problems.invalid(f"{path}.version", value, text)


def _check_qualified(problems: Problems, path: str, key: str) -> None:
    domain, slash, name = key.rpartition("/")
    if slash and not domain:
        problems.invalid(path, "", "the domain must not be empty")
    elif slash:
        check_driver(problems, path, domain)
    if slash and not name:
        problems.invalid(path, "", "the name must not be empty")
        return
    if len(name) > _MOST_ID:
        problems.too_long(path, _MOST_ID)
    if not _IDENTIFIER.fullmatch(name):
        problems.invalid(path, name, _IDENTIFIER_TEXT)
