"""The patches of the API, on plain values. What a real server makes of them: `test_rules.py`."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubelet_trio.kube import (
    PatchError,
    apply_json_patch,
    apply_merge,
    apply_strategic,
    make_strategic,
)

Json = Any


@pytest.mark.parametrize(
    ("before", "patch", "after"),
    [
        ({"a": 1}, {"b": 2}, {"a": 1, "b": 2}),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": None}}, {"a": {"c": 2}}),
        ({"a": [1, 2]}, {"a": [3]}, {"a": [3]}),
        ({"a": 1}, {"a": {"b": None, "c": 1}}, {"a": {"c": 1}}),
    ],
)
def test_a_merge_patch(before: Json, patch: Json, after: Json) -> None:
    assert apply_merge(before, patch) == after


def ready(status: str, **more: str) -> dict[str, str]:
    return {"type": "Ready", "status": status, **more}


OTHER = {"type": "Other", "status": "True"}


@pytest.mark.parametrize(
    ("before", "patch", "after"),
    [
        # Lists with a key merge by it, others are replaced.
        ([ready("False", reason="x"), OTHER], [ready("True")], [ready("True", reason="x"), OTHER]),
        ([ready("False", reason="x")], [ready("True", reason=None)], [ready("True")]),  # type: ignore[arg-type]
        ([OTHER], [ready("True")], [ready("True"), OTHER]),  # new ones come first
        ([ready("True"), OTHER], [{"$patch": "delete", "type": "Ready"}], [OTHER]),
        ([ready("True"), OTHER], [{"$patch": "replace"}, OTHER], [OTHER]),
        (None, [OTHER], [OTHER]),
    ],
)
def test_conditions_in_a_strategic_patch(before: Json, patch: Json, after: Json) -> None:
    current = {"status": {"conditions": before}} if before else {}
    done = apply_strategic(current, {"status": {"conditions": patch}}, "Pod")
    assert done == {"status": {"conditions": after}}


def test_lists_of_lists_merge_by_their_own_keys() -> None:
    container = {"name": "a", "env": [{"name": "X", "value": "1"}], "args": ["1", "2"]}
    patch = {"name": "a", "env": [{"name": "Y", "value": "2"}], "args": ["3"]}
    done = apply_strategic(
        {"spec": {"containers": [container]}}, {"spec": {"containers": [patch]}}, "Pod"
    )
    assert done["spec"]["containers"] == [
        {"name": "a", "env": [*patch["env"], *container["env"]], "args": ["3"]}
    ]


def test_an_order_of_items() -> None:
    before = {"status": {"conditions": [ready("True"), OTHER]}}
    patch = {"status": {"$setElementOrder/conditions": [{"type": "Other"}, {"type": "Ready"}]}}
    done = apply_strategic(before, patch, "Pod")
    assert done["status"]["conditions"] == [OTHER, ready("True")]


def test_plain_values() -> None:
    before = {"metadata": {"finalizers": ["a", "b"]}}
    done = apply_strategic(before, {"metadata": {"finalizers": ["c", "a"]}}, "ConfigMap")
    assert done["metadata"]["finalizers"] == ["a", "b", "c"]
    patch = {"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"]}}
    assert apply_strategic(done, patch, "ConfigMap")["metadata"]["finalizers"] == ["b", "c"]


def test_keys_that_are_kept() -> None:
    before = {"a": {"x": 1, "y": 2}}
    assert apply_strategic(before, {"a": {"$retainKeys": ["x", "z"], "z": 3}}, "Pod") == {
        "a": {"x": 1, "z": 3}
    }
    assert apply_strategic(before, {"a": {"$patch": "replace", "z": 3}}, "Pod") == {"a": {"z": 3}}


def test_an_item_without_its_key_is_refused() -> None:
    patch = {"status": {"conditions": [{"status": "True"}]}}
    with pytest.raises(PatchError, match="merge key: type"):
        apply_strategic({}, patch, "Pod")


conditions = st.dictionaries(
    st.sampled_from("ABCD"),
    st.fixed_dictionaries({"status": st.sampled_from(["True", "False"])},
                          optional={"reason": st.sampled_from(["x", "y"])}),
).map(lambda found: [{"type": key, **value} for key, value in found.items()])  # fmt: skip
objects = st.fixed_dictionaries(
    {},
    optional={
        "metadata": st.fixed_dictionaries(
            {},
            optional={
                "labels": st.dictionaries(st.sampled_from("ab"), st.sampled_from("12")),
                "finalizers": st.lists(st.sampled_from("xyz"), unique=True),
            },
        ),
        "status": st.fixed_dictionaries(
            {},
            optional={
                "phase": st.sampled_from(["Running", "Failed"]),
                "conditions": conditions,
                "containerStatuses": st.lists(st.fixed_dictionaries({"name": st.just("a")})),
                "images": st.lists(st.integers(0, 3)),
            },
        ),
    },
)


def normal(value: Json) -> Json:
    """Leave out what is empty, and the order of merged lists, which patches need not keep."""
    if isinstance(value, dict):
        return {
            key: found for key, item in value.items() if (found := normal(item)) not in ({}, [])
        }
    if isinstance(value, list):
        return sorted((normal(item) for item in value), key=repr)
    return value


@given(objects, objects)
def test_a_made_patch_leads_from_one_state_to_the_other(before: Json, after: Json) -> None:
    patch = make_strategic(before, after, "Pod")
    assert normal(apply_strategic(before, patch, "Pod")) == normal(after)
    assert make_strategic(after, after, "Pod") == {}


def test_a_made_patch_is_small() -> None:
    before = {"status": {"phase": "Running", "conditions": [ready("False"), OTHER]}}
    after = {"status": {"phase": "Running", "conditions": [ready("True"), OTHER]}}
    assert make_strategic(before, after, "Pod") == {
        "status": {
            "$setElementOrder/conditions": [{"type": "Ready"}, {"type": "Other"}],
            "conditions": [{"type": "Ready", "status": "True"}],
        }
    }


@pytest.mark.parametrize(
    ("operations", "after"),
    [
        ([{"op": "add", "path": "/c", "value": 3}], {"a": {"b": [1, 2]}, "c": 3}),
        ([{"op": "add", "path": "/a/b/1", "value": 9}], {"a": {"b": [1, 9, 2]}}),
        ([{"op": "add", "path": "/a/b/-", "value": 9}], {"a": {"b": [1, 2, 9]}}),
        ([{"op": "remove", "path": "/a/b/0"}], {"a": {"b": [2]}}),
        ([{"op": "replace", "path": "/a/b", "value": None}], {"a": {"b": None}}),
        ([{"op": "move", "from": "/a/b", "path": "/x~1y"}], {"a": {}, "x/y": [1, 2]}),
        ([{"op": "copy", "from": "/a/b/0", "path": "/n"}], {"a": {"b": [1, 2]}, "n": 1}),
        ([{"op": "test", "path": "/a/b/0", "value": 1}], {"a": {"b": [1, 2]}}),
    ],
)
def test_a_json_patch(operations: Json, after: Json) -> None:
    assert apply_json_patch({"a": {"b": [1, 2]}}, operations) == after


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "remove", "path": "/x"},
        {"op": "replace", "path": "/a/x", "value": 1},
        {"op": "add", "path": "/x/y", "value": 1},
        {"op": "add", "path": "/a/b/7", "value": 1},
        {"op": "test", "path": "/a/b/0", "value": 2},
        {"op": "jump", "path": "/a"},
    ],
)
def test_a_json_patch_that_does_not_fit(operation: Json) -> None:
    with pytest.raises(PatchError):
        apply_json_patch({"a": {"b": [1, 2]}}, [operation])
