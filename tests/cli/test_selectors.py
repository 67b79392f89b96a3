"""Label and field selectors, as kubectl reads them."""

from __future__ import annotations

from typing import Any

import pytest

from kubelet_trio.cli.selectors import has_fields, parse_fields, parse_labels

LABELS = {"app": "web", "tier": "front", "n": "3", "example.com/x": ""}


@pytest.mark.parametrize(
    ("selector", "is_match"),
    [
        ("", True),
        ("app=web", True),
        ("app==web", True),
        ("app = web , tier=front", True),
        ("app=db", False),
        ("app=web,tier=back", False),
        ("app!=db", True),
        ("app!=web", False),
        ("missing!=x", True),
        ("missing=", False),
        ("example.com/x=", True),
        ("app in (web, db)", True),
        ("app in (db)", False),
        ("app notin (db,x)", True),
        ("app notin (web)", False),
        ("missing notin (web)", True),
        ("missing in (web)", False),
        ("app", True),
        ("missing", False),
        ("!app", False),
        ("! missing", True),
        ("n>2", True),
        ("n>3", False),
        ("n < 4", True),
        ("app>1", False),
        ("missing<1", False),
        ("app in (web,db),!missing,n>1", True),
    ],
)
def test_labels_are_matched_as_by_kubectl(selector: str, is_match: bool) -> None:
    assert parse_labels(selector)(LABELS) is is_match


@pytest.mark.parametrize("selector", ["=x", "a b", "a in b", "a in (b", "a=b,,c", "a=b c", "a>"])
def test_a_wrong_selector_is_refused_with_its_part(selector: str) -> None:
    with pytest.raises(ValueError, match=r"expected (KEY=VALUE|a number)"):
        parse_labels(selector)


POD: dict[str, Any] = {
    "metadata": {"name": "web"},
    "spec": {"hostNetwork": True},
    "status": {"phase": "Running"},
}


@pytest.mark.parametrize(
    ("selector", "is_match"),
    [
        ("", True),
        ("status.phase=Running", True),
        ("status.phase==Failed", False),
        ("status.phase!=Running", False),
        ("status.podIP=", True),
        ("spec.hostNetwork=true,metadata.name=web", True),
        ("metadata.name.x!=y", True),
    ],
)
def test_fields_are_compared_as_text(selector: str, is_match: bool) -> None:
    assert has_fields(POD, parse_fields(selector)) is is_match


def test_a_wrong_field_selector_is_refused() -> None:
    with pytest.raises(ValueError, match=r'"status\.phase": expected FIELD=VALUE or FIELD!=VALUE'):
        parse_fields("status.phase")
