"""Decide whether a node matches a pod: its node selector, required affinity and tolerations.

Upstream: component-helpers/scheduling/corev1, nodeaffinity.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from lightkube.models.core_v1 import (
    NodeSelectorRequirement,
    NodeSelectorTerm,
    Pod,
    Taint,
    Toleration,
)

from kubelet_trio.model import spec

_NAME = "metadata.name"
_INTEGER = re.compile(r"[+-]?[0-9]{1,63}")  # 63: the longest value of a label


def matches_node(pod: Pod, name: str, labels: Mapping[str, str]) -> bool:
    """Return whether the pod's selector and required affinity are satisfied."""
    selector = spec(pod).nodeSelector or {}
    if any(labels.get(key) != value for key, value in selector.items()):
        return False
    affinity = spec(pod).affinity
    required = (
        affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution
        if affinity is not None and affinity.nodeAffinity is not None
        else None
    )
    if required is None:
        return True
    # Terms are ORed, the expressions of one term ANDed.
    return any(_matches_term(term, name, labels) for term in required.nodeSelectorTerms)


def untolerated(
    taints: Iterable[Taint], tolerations: Iterable[Toleration], effect: str
) -> Taint | None:
    """Return the first taint with an effect that no toleration matches."""
    given = list(tolerations)
    for taint in taints:
        if taint.effect == effect and not any(_tolerates(t, taint) for t in given):
            return taint
    return None


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False  # a toleration without a key matches every key
    if toleration.operator == "Exists":
        return True
    if toleration.operator not in (None, "", "Equal"):
        return False
    return (toleration.value or "") == (taint.value or "")


def _matches_term(term: NodeSelectorTerm, name: str, labels: Mapping[str, str]) -> bool:
    expressions, fields = term.matchExpressions or [], term.matchFields or []
    if not expressions and not fields:
        return False  # as the API documents it: an empty term matches no node
    return all(_matches(each, labels) for each in expressions) and all(
        _matches_field(each, name) for each in fields
    )


def _matches_field(requirement: NodeSelectorRequirement, name: str) -> bool:
    """Compare with the node's name, the only field that can be selected, and with one value."""
    values = requirement.values or []
    if requirement.key != _NAME or len(values) != 1:
        return False
    if requirement.operator == "In":
        return bool(values[0] == name)
    return requirement.operator == "NotIn" and values[0] != name


def _matches(requirement: NodeSelectorRequirement, labels: Mapping[str, str]) -> bool:
    value, values = labels.get(requirement.key), requirement.values or []
    match requirement.operator:
        case "In":
            return value is not None and value in values
        case "NotIn":
            return value is None or value not in values  # also if the label is absent
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            return _compares(requirement.operator, value, values)
    return False  # an unknown operator matches nothing


def _compares(operator: str, value: str | None, values: list[str]) -> bool:
    if value is None or len(values) != 1:
        return False
    left, right = _parse_int(value), _parse_int(values[0])
    if left is None or right is None:
        return False
    return left > right if operator == "Gt" else left < right


def _parse_int(text: str) -> int | None:
    """Return what Go's ParseInt(text, 10, 64) returns, None for its errors."""
    # Python's int() also accepts `1_0`, spaces and the digits of other scripts.
    if not _INTEGER.fullmatch(text):
        return None
    number = int(text)
    return number if -(1 << 63) <= number < 1 << 63 else None
