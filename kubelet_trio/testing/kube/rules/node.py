"""Rules of Node, its status included."""

from __future__ import annotations

from kubelet_trio.model import NANO, parse_quantity
from kubelet_trio.testing.kube.rules.formats import (
    CIDR_TEXT,
    cidr_version,
    declared_feature,
    label_value,
    qualified_name,
)
from kubelet_trio.testing.kube.rules.problems import NOT_NEGATIVE, Problems
from kubelet_trio.testing.kube.store import Json

EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_WHOLE = ("pods", "services", "secrets", "configmaps")
_CHANGEABLE = ("taints", "unschedulable", "podCIDR", "podCIDRs", "providerID", "configSource")


def default_node(obj: Json) -> None:
    """Make `podCIDR` and `podCIDRs` agree; the older field wins."""
    spec = obj.setdefault("spec", {})
    first, all_ = spec.get("podCIDR") or "", spec.get("podCIDRs") or []
    if first and (not all_ or all_[0] != first):
        all_ = [first]
    if all_:
        spec["podCIDR"], spec["podCIDRs"] = all_[0], all_


def check_new_node(problems: Problems, obj: Json) -> None:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    _check_taints(problems, spec.get("taints") or [])
    _check_amounts(problems, status)
    _check_cidrs(problems, spec.get("podCIDRs") or [])
    swap = (status.get("nodeInfo") or {}).get("swap") or {}
    if (capacity := swap.get("capacity")) is not None and capacity <= 0:
        problems.invalid("metadata.nodeSwapStatus.capacity", capacity, "must be greater than zero")
    _check_declared(problems, status)


def check_changed_node(problems: Problems, old: Json, new: Json) -> None:
    """Check a changed node. As upstream, only a new node's swap is checked."""
    status, was, now = new.get("status") or {}, old.get("spec") or {}, new.get("spec") or {}
    _check_amounts(problems, status)
    seen = []
    for at, address in enumerate(status.get("addresses") or ()):
        # Messages show Go structs without JSON tags, hence the capitals of `_go_cased`.
        if address in seen:
            problems.duplicate(f"status.addresses[{at}]", _go_cased(address))
        seen.append(address)
    # Set once, by the node IPAM controller: pods have addresses from it.
    if was.get("podCIDRs") and was["podCIDRs"] != now.get("podCIDRs"):
        text = 'node updates may not change podCIDR except from "" to valid'
        problems.forbidden("spec.podCIDRs", text)
    else:
        _check_cidrs(problems, now.get("podCIDRs") or [])
    if was.get("taints") != now.get("taints"):
        _check_taints(problems, now.get("taints") or [])
    if was.get("providerID") and was["providerID"] != now.get("providerID"):
        text = 'node updates may not change providerID except from "" to valid'
        problems.forbidden("spec.providerID", text)
    if {k: v for k, v in was.items() if k not in _CHANGEABLE} != {
        k: v for k, v in now.items() if k not in _CHANGEABLE
    }:
        problems.forbidden("spec", "node updates may only change labels, taints, or capacity")
    _check_declared(problems, status)


def _check_amounts(problems: Problems, status: Json) -> None:
    for field in ("capacity", "allocatable"):
        for name, amount in (status.get(field) or {}).items():
            path, nano = f"status.{field}.{name}", parse_quantity(str(amount))
            if nano < 0:
                problems.invalid(path, str(amount), NOT_NEGATIVE)
            elif nano % NANO and (name in _WHOLE or "/" in name or name.startswith("hugepages-")):
                problems.invalid(path, str(amount), "must be an integer")


def _check_taints(problems: Problems, taints: list[Json]) -> None:
    seen = set()
    for at, taint in enumerate(taints):
        # The path is upstream's, though taints are in the spec.
        path, key = f"metadata.taints[{at}]", taint.get("key") or ""
        for text in qualified_name(key):
            problems.invalid(f"{path}.key", key, text)
        value = taint.get("value") or ""
        for text in label_value(value):
            problems.invalid(f"{path}.value", value, text)
        effect = taint.get("effect") or ""
        if not effect:
            problems.required(f"{path}.effect")
        elif effect not in EFFECTS:
            problems.unsupported(f"{path}.effect", effect, EFFECTS)
        if (key, effect) in seen:
            whole = {"Key": key, "Value": value, "Effect": effect,
                     "TimeAdded": taint.get("timeAdded")}  # fmt: skip
            problems.duplicate(path, whole, "taints must be unique by key and effect pair")
        seen.add((key, effect))


def _check_cidrs(problems: Problems, cidrs: list[str]) -> None:
    for at, cidr in enumerate(cidrs):
        if not cidr_version(cidr):
            problems.invalid(f"spec.podCIDRs[{at}]", cidr, CIDR_TEXT)
    versions = [version for cidr in cidrs if (version := cidr_version(cidr))]
    if len(versions) > 1 and len(set(versions)) < len(versions):
        text = "may specify no more than one CIDR for each IP family"
        problems.invalid("spec.podCIDRs", cidrs, text)


def _check_declared(problems: Problems, status: Json) -> None:
    seen = set()
    for at, name in enumerate(status.get("declaredFeatures") or ()):
        path = f"status.declaredFeatures[{at}]"
        for text in declared_feature(name):
            problems.invalid(path, name, text)
        if name in seen:
            problems.duplicate(path, name)
        seen.add(name)


def _go_cased(value: Json) -> Json:
    return {key[:1].upper() + key[1:]: item for key, item in value.items()}
