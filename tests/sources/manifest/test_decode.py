from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubelet_trio.sources.errors import YamlError
from kubelet_trio.sources.manifest.decode import MAX_MANIFEST_SIZE, RawObject, decode
from kubelet_trio.sources.manifest.yaml_documents import plain_scalar, yaml_documents

POD = {"apiVersion": "v1", "kind": "Pod"}
YAML_POD = "apiVersion: v1\nkind: Pod\n"


def reasons(data: bytes) -> list[str]:
    return [
        f"{e.document}:{e.field}: " + (f"line {e.line}: " if e.line else "") + e.message
        for e in decode(data).errors
    ]


def value(text: str) -> Any:
    (document,) = yaml_documents(text)
    return document


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("", None),
        ("~", None),
        ("null", None),
        ("true", True),
        ("yes", True),
        ("y", True),
        ("Off", False),
        ("tRUE", "tRUE"),
        ("12", 12),
        ("-12", -12),
        ("+1_000", 1000),
        ("0644", 420),
        ("0o644", 420),
        ("0x1F", 31),
        ("0b101", 5),
        ("08", 8),  # no octal, so a float that is whole
        ("22:22", "22:22"),  # no sexagesimal numbers
        ("1.5", 1.5),
        (".5", 0.5),
        ("30.0", 30),
        ("1e3", 1000),
        ("1.2.3.4", "1.2.3.4"),
        ("2024-01-02", "2024-01-02"),
        ("2024-01-02T03:04:05Z", "2024-01-02T03:04:05Z"),
        ("-", "-"),
        ("100m", "100m"),
        (".5.5", ".5.5"),
        ("0x", "0x"),
        ("_1", "_1"),
        ("0b_", "0b_"),
    ],
)
def test_plain_scalars_mean_what_kubernetes_takes_them_for(text: str, meaning: object) -> None:
    got = plain_scalar(text)
    assert got == meaning
    assert type(got) is type(meaning)


def test_quoted_scalars_are_strings() -> None:
    assert value("a: 'yes'\nb: \"12\"\n") == {"a": "yes", "b": "12"}
    assert value("a: |\n  5\n") == {"a": "5\n"}
    assert value("a: !!str 5\n") == {"a": "5"}


def test_keys_become_strings_as_in_json() -> None:
    assert value("1: a\ntrue: b\n1.5: c\n") == {"1": "a", "true": "b", "1.5": "c"}


def test_merge_keys_fill_in_what_is_not_there() -> None:
    text = "base: &b {f: 1, g: 2}\nuse:\n  <<: *b\n  g: 3\n"
    assert value(text)["use"] == {"f": 1, "g": 3}
    assert value("a: {f: 1, '<<': 2}\n") == {"a": {"f": 1, "<<": 2}}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a: 1\nb: 2\na: 3\n", 'line 3: duplicate field "a"'),
        ("a:\n  x: 1\n  x: 1\n", 'line 3: duplicate field "x"'),
        ("1: a\n'1': b\n", 'line 2: duplicate field "1"'),
        ("a: !!python/object:os.system {}\n", "line 1: tag"),
        ("a: !mine 5\n", "line 1: tag !mine"),
        ("a: !!int x\n", "is no int"),
        ("a: &x [*x]\n", "alias *x has no anchor before it"),
        ("a: *x\n", "alias *x has no anchor before it"),
        ("? [a]\n: b\n", "line 1: a field's name must be a string"),
        ("<<: 5\n", "<< takes a mapping"),
        ("a: [1\n", "line 2: "),
        ("a:\n\tb: 1\n", "line 2: a tab in the indentation"),
        ("a: \x01\n", "control characters are not allowed"),
        ("[" * 500, "nested deeper than 100 levels"),
        ("a: " + "{b: " * 200, "nested deeper than 100 levels"),
    ],
)
def test_what_yaml_may_not_hold_is_refused_with_its_line(text: str, reason: str) -> None:
    with pytest.raises(YamlError) as caught:
        list(yaml_documents(text))
    assert reason in str(caught.value)


def test_aliases_cannot_multiply_without_end() -> None:
    layers = ["l0: &l0 [x, x, x, x, x, x, x, x, x, x]"]
    layers += [f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 10)}]" for i in range(1, 12)]
    with pytest.raises(YamlError, match="aliases expand to too many values"):
        list(yaml_documents("\n".join(layers)))


def test_documents_keep_their_number_and_empty_ones_are_skipped() -> None:
    text = f"---\n# nothing\n---\n{YAML_POD}---\n---\n{YAML_POD}"
    assert [raw.document for raw in decode(text.encode()).objects] == [2, 4]


def test_lists_are_taken_apart_and_items_of_a_pod_list_need_no_kind() -> None:
    listed = {"apiVersion": "v1", "kind": "List", "items": [POD, POD]}
    pods = {"apiVersion": "v1", "kind": "PodList", "items": [{"metadata": {}}]}
    assert [raw.path for raw in decode(json.dumps(listed).encode()).objects] == [
        "items[0]",
        "items[1]",
    ]
    (item,) = decode(json.dumps(pods).encode()).objects
    assert item == RawObject(1, "items[0]", {"metadata": {}})


@pytest.mark.parametrize("items", ["[]", "null"])
def test_an_empty_list_says_that_there_are_no_pods(items: str) -> None:
    assert decode(f"apiVersion: v1\nkind: List\nitems: {items}\n".encode()) == ([], [])


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "0:: holds no document"),
        (b" \n# a comment\n---\n", "0:: holds no document"),
        (b"\xff\xfea", "0:: not UTF-8: byte 0xff at offset 0"),
        (b"just text", "1:: expected an object of kind Pod, got a string"),
        (b"[]", "1:: expected an object of kind Pod, got a list"),
        (b"kind: Pod", "1:apiVersion: Required value"),
        (b"apiVersion: v1", "1:kind: Required value"),
        (b"{apiVersion: v2, kind: Pod}", 'Unsupported value: "v2"'),
        (
            b"{apiVersion: v1, kind: PodList, items: [{kind: Secret}]}",
            '1:items[0].kind: Unsupported value: "Secret": a PodList holds Pods',
        ),
        (b"{apiVersion: apps/v1, kind: Deployment}", '1:kind: Unsupported value: "Deployment"'),
        (b"{apiVersion: apps/v1, kind: StatefulSet}", "put its spec.template into a document"),
        (b"{apiVersion: batch/v1, kind: CronJob}", "put its spec.jobTemplate.spec.template into"),
        (b"{apiVersion: v1, kind: pod}", 'kind: Unsupported value: "pod": did you mean "Pod"?'),
        (b"{apiVersion: v1, kind: configmaps}", 'did you mean "ConfigMap"?'),
        (b"{apiVersion: v1, kind: Service}", 'supported values: "Pod", '),
        (b"{apiVersion: v1, kind: [1]}", "1:kind: Unsupported value: [1]"),
        (b"{apiVersion: v1, kind: List, items: 5}", "1:items: expected a list"),
        (
            b"{apiVersion: v1, kind: List, items: [{apiVersion: v1, kind: List, items: []}]}",
            "1:items[0].kind: a list inside a list",
        ),
    ],
)
def test_what_is_no_pod_is_refused_by_name(data: bytes, expected: str) -> None:
    (reason,) = reasons(data)
    assert expected in reason


@pytest.mark.parametrize("kind", ["List", "PodList"])
@pytest.mark.parametrize("version", ["null", "v2"])
def test_a_list_without_its_version_is_no_object_itself(kind: str, version: str) -> None:
    found = decode(f"apiVersion: {version}\nkind: {kind}\nitems: []\n".encode())
    assert not found.objects
    assert [error.field for error in found.errors] == ["apiVersion"]


def test_every_object_is_looked_at_before_a_file_is_refused() -> None:
    text = f"kind: A\napiVersion: v1\n---\n{YAML_POD}---\nkind: B\napiVersion: v1\n"
    assert [reason[:2] for reason in reasons(text.encode())] == ["1:", "3:"]


def test_more_than_ten_mebibytes_are_refused() -> None:
    assert reasons(b"#" * (MAX_MANIFEST_SIZE + 1)) == ["0:: larger than 10 MiB"]
    assert reasons(b"#" * MAX_MANIFEST_SIZE) == ["0:: holds no document"]


def test_json_streams_are_read_with_their_own_escapes() -> None:
    text = '\ufeff {"apiVersion": "v1", "kind": "Pod", "x": "\\ud83d\\ude00"}\n'
    text += '{"apiVersion":"v1","kind":"Pod"}'
    raws = decode(text.encode()).objects
    assert [raw.document for raw in raws] == [1, 2]
    assert raws[0].value["x"] == "\U0001f600"


def test_flow_yaml_is_not_mistaken_for_broken_json() -> None:
    assert decode(b"{apiVersion: v1, kind: Pod}").objects == [RawObject(1, "", POD)]


def test_duplicate_fields_are_refused_in_json_too_with_their_line() -> None:
    assert reasons(b'{\n"a": 1,\n"a": 2}') == ['0:: line 3: duplicate field "a"']
    # YAML cannot read this escape: then the name has to do
    assert reasons(b'{"a": "\\ud83d\\ude00", "a": 2}')[0].startswith("0:: ")


@pytest.mark.parametrize("data", [b'{"a": }', b'{"a": NaN}', b'{"a": 1,', b"{" * 100_000])
def test_broken_json_is_refused(data: bytes) -> None:
    assert len(reasons(data)) == 1


@given(st.binary(max_size=200))
def test_any_bytes_decode_or_are_refused(data: bytes) -> None:
    decoded = decode(data)
    assert decoded.objects or decoded.errors or b"List" in data


YAML_BITS = st.sampled_from(
    [
        "a: ",
        "- ",
        "&x ",
        "*x",
        "<<: ",
        "? ",
        "!!int ",
        "{",
        "}",
        "[",
        "]",
        ", ",
        "\n",
        "  ",
        '"',
        "1",
    ]
)


@given(st.lists(YAML_BITS, max_size=30).map("".join))
def test_any_text_that_looks_like_yaml_decodes_or_is_refused(text: str) -> None:
    decoded = decode(text.encode())
    assert decoded.objects or decoded.errors


json_values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**53), 2**53),
        st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), max_size=10),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.text("abc", min_size=1, max_size=3), inner, max_size=4),
    ),
    max_leaves=20,
)


@given(json_values)
def test_yaml_reads_back_what_another_library_wrote(document: Any) -> None:
    import yaml

    # In quotes and with tags, for the two do not agree on what `N` or `1:2` means.
    text = yaml.safe_dump(document, default_style='"')
    assert list(yaml_documents(text)) == [document]
