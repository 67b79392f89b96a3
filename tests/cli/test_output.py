"""`-o FORM` and `--sort-by`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from kubelet_trio.cli.output import parse_output, sort_objects


def pod(name: str, value: Any = None) -> dict[str, Any]:
    return {"kind": "Pod", "metadata": {"name": name}, "x": {} if value is None else {"v": value}}


PODS = [pod("web", 3), pod("db")]


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("name", "pod/web\npod/db\n"),
        ("jsonpath={.items[*].metadata.name}", "web db"),
        ("jsonpath-as-json={.items[*].x.v}", "[\n    3\n]\n"),
        ("custom-columns=NAME:.metadata.name,V:{.x.v}", "NAME   V\nweb    3\ndb     <none>\n"),
    ],
)
def test_objects_are_printed_in_the_form(form: str, expected: str) -> None:
    assert parse_output(form).text(PODS) == expected


def test_one_object_has_no_list_around_it() -> None:
    assert parse_output("jsonpath={.metadata.name}").text(PODS[:1], is_one=True) == "web"
    assert parse_output("jsonpath=.metadata.name").text(PODS[:1], is_one=True) == "web"


def test_a_template_may_be_in_a_file(tmp_path: Path) -> None:
    template, columns = tmp_path / "t", tmp_path / "c"
    template.write_text("{.items[0].kind}\n")
    columns.write_text("NAME V\nmetadata.name x.v\n")
    assert parse_output(f"jsonpath-file={template}").text(PODS) == "Pod\n"
    shown = parse_output(f"custom-columns-file={columns}").text(PODS, headers=False)
    assert shown == "web    3\ndb     <none>\n"


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ("xml", '"xml": expected one of wide, name, json, yaml, jsonpath'),
        ("wide=1", '"wide=1": expected one of'),
        ("jsonpath", "jsonpath needs a value: jsonpath='{.items"),
        ("go-template={{.x}}", "go-template is not supported: use jsonpath"),
        ("custom-columns=NAME", '"NAME": expected HEADER:FIELD'),
        ("custom-columns=NAME:{.a}{.b}", "expected a field"),
        ("jsonpath={.a", "unclosed action"),
    ],
)
def test_a_form_that_is_none_is_refused_with_the_ones_there_are(form: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_output(form)


def test_a_columns_file_needs_as_many_fields_as_headers(tmp_path: Path) -> None:
    (tmp_path / "c").write_text("NAME V\nmetadata.name\n")
    with pytest.raises(ValueError, match="2 headers and 1 fields"):
        parse_output(f"custom-columns-file={tmp_path}/c")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([3, None, 11, 2], [None, 2, 3, 11]),
        (["web-10", "web-2", "app"], ["app", "web-2", "web-10"]),
        (["1Gi", "500Mi", "2k", "100m"], ["100m", "2k", "500Mi", "1Gi"]),
    ],
)
def test_objects_are_sorted_by_what_the_field_is(values: list[Any], expected: list[Any]) -> None:
    ordered = sort_objects([pod("p", value) for value in values], ".x.v")
    assert [each["x"].get("v") for each in ordered] == expected
