"""Does a pod's node selector and required affinity let it be on this node?

Source: component-helpers/scheduling/corev1/nodeaffinity. What cannot be understood matches
nothing, as upstream's does.
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
_INTEGER = re.compile(r"[+-]?[0-9]{1,63}")  # the length of a label's value


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
    return any(_matches_term(term, name, labels) for term in required.nodeSelectorTerms)


def untolerated(
    taints: Iterable[Taint], tolerations: Iterable[Toleration], effect: str
) -> Taint | None:
    """Return the first taint of an effect that no toleration covers."""
    given = list(tolerations)
    for taint in taints:
        if taint.effect == effect and not any(_tolerates(t, taint) for t in given):
            return taint
    return None


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator == "Exists":
        return True
    if toleration.operator not in (None, "", "Equal"):
        return False
    return (toleration.value or "") == (taint.value or "")


def _matches_term(term: NodeSelectorTerm, name: str, labels: Mapping[str, str]) -> bool:
    expressions, fields = term.matchExpressions or [], term.matchFields or []
    if not expressions and not fields:
        return False  # an empty term is of no node
    return all(_matches(each, labels) for each in expressions) and all(
        _matches_field(each, name) for each in fields
    )


def _matches_field(requirement: NodeSelectorRequirement, name: str) -> bool:
    """A node has one field to select by, its name, and only one value may be named."""
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
            return value is None or value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            return _compares(requirement.operator, value, values)
    return False


def _compares(operator: str, value: str | None, values: list[str]) -> bool:
    if value is None or len(values) != 1:
        return False
    left, right = _parse_int(value), _parse_int(values[0])
    if left is None or right is None:
        return False
    return left > right if operator == "Gt" else left < right


def _parse_int(text: str) -> int | None:
    """Return what Go's ParseInt(text, 10, 64) does, None for its errors.

    Python's int() also takes `1_0`, spaces and the digits of other scripts.
    """
    if not _INTEGER.fullmatch(text):
        return None
    number = int(text)
    return number if -(1 << 63) <= number < 1 << 63 else None
