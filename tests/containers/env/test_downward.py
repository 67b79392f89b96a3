from __future__ import annotations

from kubelet_trio.containers import PodFacts, field_value
from kubelet_trio.containers.env.downward import format_map, quote
from tests.containers.make import pod


def test_labels_are_sorted_lines_with_quoted_values() -> None:
    of_pod = pod(meta={"labels": {"b": "2", "a": 'say "hi"'}})
    assert field_value(of_pod, "metadata.labels", PodFacts()) == 'a="say \\"hi\\""\nb="2"'
    assert field_value(of_pod, "metadata.annotations", PodFacts()) == ""


def test_values_are_quoted_as_go_does() -> None:
    assert quote("ä\n\t\\\x01\x7f\u200b\U000e0001") == '"ä\\n\\t\\\\\\x01\\x7f\\u200b\\U000e0001"'
    assert format_map({}) == ""
