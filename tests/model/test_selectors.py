"""Label selectors; those of nodes are tested with the pods that ask for them (tests/pods)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from lightkube.models.meta_v1 import LabelSelector

from kubelet_trio.model import matches_label_selector

LABELS = {"app": "web", "tier": "front"}


def expression(operator: str, *values: str, key: str = "app") -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (None, False),
        ({}, True),
        ({"matchLabels": {"app": "web"}}, True),
        ({"matchLabels": {"app": "web", "tier": "back"}}, False),
        ({"matchLabels": {"zone": ""}}, False),
        (expression("In", "web", "db"), True),
        (expression("In", "db"), False),
        (expression("In", "web", key="zone"), False),
        (expression("NotIn", "db"), True),
        (expression("NotIn", "web"), False),
        (expression("NotIn", "web", key="zone"), True),
        (expression("Exists"), True),
        (expression("Exists", key="zone"), False),
        (expression("DoesNotExist"), False),
        (expression("DoesNotExist", key="zone"), True),
        ({"matchLabels": {"tier": "front"}, **expression("In", "db")}, False),
    ],
)
def test_what_matches(document: dict[str, Any] | None, expected: bool) -> None:
    selector = msgspec.convert(document, LabelSelector) if document is not None else None
    assert matches_label_selector(selector, LABELS) is expected


def test_an_unknown_operator_is_refused() -> None:
    selector = msgspec.convert(expression("Gt", "1"), LabelSelector)
    with pytest.raises(ValueError, match='"Gt" is not a valid label selector operator'):
        matches_label_selector(selector, LABELS)
