from __future__ import annotations

import json

import pytest

from kubelet_trio.model import Position, Wanted, excerpt, find_positions

TEXT = """\
# a comment
kind: Pod
metadata:
  name: web
  labels: {app.kubernetes.io/name: web, a: "é", b: x}
spec:
  containers:
    - name: main
      imagee: x
      a.b: 1
      command: >-
        sleep
      args:
        - one
        - two
    - &second
      name: other
  initContainers:
    - *second
---
kind: Secret
"""


@pytest.mark.parametrize(
    ("path", "of_value", "line", "column"),
    [
        ("kind", False, 2, 1),
        ("kind", True, 2, 7),
        ("metadata.labels[app.kubernetes.io/name]", True, 5, 36),
        ("metadata.labels[b]", False, 5, 49),
        ("spec.containers[0].imagee", False, 9, 7),
        ("spec.containers[0].a.b", True, 10, 12),
        ("spec.containers[0].args", True, 13, 7),  # its value begins on the next line
        ("spec.containers[0].args[1]", False, 15, 11),
        ("spec.containers[0].image", False, 8, 7),  # missing: the container
        ("spec.containers[1].name", True, 17, 13),
        ("spec.initContainers[0].image", False, 19, 7),  # in an alias
        ("spec.nothing.here", False, 6, 1),
        ("", False, 2, 1),
    ],
)
def test_a_field_is_found_by_its_path(path: str, of_value: bool, line: int, column: int) -> None:
    assert find_positions(TEXT, [Wanted(1, path, of_value)]) == [Position(line, column)]


def test_documents_are_counted_and_a_missing_one_has_no_position() -> None:
    wanted = [Wanted(2, "kind"), Wanted(3, "kind"), Wanted(1, "kind")]
    assert find_positions(TEXT, wanted) == [Position(21, 1), None, Position(2, 1)]
    assert find_positions("", wanted) == [None, None, None]


def test_json_is_read_by_its_own_rules() -> None:
    stream = '{\n\t"a": "\\ud83d\\ude00", "b": [1,\n  {"c": true}]}\n{"a": -1e5}'
    wanted = [Wanted(1, "b[1].c"), Wanted(1, "b", True), Wanted(2, "a", True)]
    assert find_positions(stream, wanted) == [Position(3, 4), Position(2, 28), Position(4, 7)]
    # Not JSON, though it begins so.
    assert find_positions("{a: 1,\n b: 2}", [Wanted(1, "b")]) == [Position(2, 2)]
    assert find_positions('{"a": 1}\n---\n{"a": 2}', [Wanted(2, "a")]) == [Position(3, 2)]


@pytest.mark.parametrize("text", ["[" * 50_000, '{"a":' * 50_000, "- " * 50_000, "a: *b\n", "{"])
def test_a_hostile_text_neither_recurses_nor_raises(text: str) -> None:
    path = ".".join(["a"] * 900)
    find_positions(text, [Wanted(1, path), Wanted(1, "a[0]" * 5000), Wanted(9, "")])


def test_an_excerpt_has_a_caret_below_the_column() -> None:
    assert excerpt("a: 1\n\tb: é x\n", Position(2, 7)) == "\tb: é x\n\t     ^"
    assert excerpt("a", Position(1, 2)) == "a\n ^"
    line = json.dumps({"name": "x" * 500, "bad": 1})
    shown, caret = excerpt(line, Position(1, line.index("bad") + 1)).split("\n")
    assert len(shown) < 120
    assert shown[caret.index("^") :].startswith("bad")
    assert excerpt("a\x1b[31m", Position(1, 1)) == "a?[31m\n^"
