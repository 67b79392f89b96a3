"""Match labels with the selectors of the API: of nodes, and of other objects. Pure.

Upstream: component-helpers/scheduling/corev1/nodeaffinity, and LabelSelectorAsSelector in
apimachinery's meta/v1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from lightkube.models.core_v1 import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from lightkube.models.meta_v1 import LabelSelector

_NAME = "metadata.name"
_INTEGER = re.compile(r"[+-]?[0-9]{1,63}")  # 63: the longest value of a label
_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")


def matches_node_selector(selector: NodeSelector, name: str, labels: Mapping[str, str]) -> bool:
    """Return whether a node matches: terms are ORed, the expressions of one term ANDed."""
    return any(_matches_term(term, name, labels) for term in selector.nodeSelectorTerms)


def matches_label_selector(selector: LabelSelector | None, labels: Mapping[str, str]) -> bool:
    """Return whether an object matches: none at all matches nothing, an empty one everything.

    Raises ValueError for an unknown operator.
    """
    if selector is None:
        return False
    expressions = selector.matchExpressions or ()
    for each in expressions:
        if each.operator not in _OPERATORS:
            raise ValueError(f'"{each.operator}" is not a valid label selector operator')
    exact = selector.matchLabels or {}
    return all(labels.get(key) == value for key, value in exact.items()) and all(
        _matches(each.operator, each.values or [], labels.get(each.key)) for each in expressions
    )


def _matches_term(term: NodeSelectorTerm, name: str, labels: Mapping[str, str]) -> bool:
    expressions, fields = term.matchExpressions or [], term.matchFields or []
    if not expressions and not fields:
        return False  # as the API documents it: an empty term matches no node
    return all(
        _matches(each.operator, each.values or [], labels.get(each.key)) for each in expressions
    ) and all(_matches_field(each, name) for each in fields)


def _matches_field(requirement: NodeSelectorRequirement, name: str) -> bool:
    """Compare with the node's name, the only field that can be selected, and with one value."""
    values = requirement.values or []
    if requirement.key != _NAME or len(values) != 1:
        return False
    if requirement.operator == "In":
        return bool(values[0] == name)
    return requirement.operator == "NotIn" and values[0] != name


def _matches(operator: str, values: list[str], value: str | None) -> bool:
    match operator:
        case "In":
            return value is not None and value in values
        case "NotIn":
            return value is None or value not in values  # also if the label is absent
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            return _compares(operator, value, values)
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
