"""The CSINode and what CSI drivers add to the Node: decided without I/O."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lightkube.models.core_v1 import Node
from lightkube.models.meta_v1 import ObjectMeta, OwnerReference
from lightkube.models.storage_v1 import CSINode, CSINodeSpec

from kubelet_trio.node.csi_object import (
    MIGRATED,
    MIGRATED_PLUGINS,
    NODE_ID,
    changed_csi_node,
    new_csi_node,
    node_patch,
    owner_of,
    without_replaced,
)
from kubelet_trio.node.errors import CsiNodeError


@dataclass(frozen=True)
class Facts:
    name: str = "disk.example.com"
    node_id: str = "i-1"
    max_volumes: int = 0
    topology: dict[str, str] = field(default_factory=dict)


DISK = Facts(max_volumes=8, topology={"example.com/zone": "a", "example.com/rack": "7"})


def plain(csi_node: CSINode) -> list[dict[str, Any]]:
    return [
        {
            "name": entry.name,
            "nodeID": entry.nodeID,
            "keys": entry.topologyKeys,
            "count": entry.allocatable.count if entry.allocatable else None,
        }
        for entry in csi_node.spec.drivers or ()
    ]


def node(labels: dict[str, str] | None = None, annotation: str | None = None) -> Node:
    marks = None if annotation is None else {NODE_ID: annotation}
    return Node(metadata=ObjectMeta(name="node-1", labels=labels, annotations=marks))


def test_a_new_object_is_owned_by_the_node_and_names_the_migrated_plugins() -> None:
    made = new_csi_node("node-1", "uid-1", [DISK])
    assert made.metadata is not None
    assert made.metadata.ownerReferences == [
        OwnerReference(apiVersion="v1", kind="Node", name="node-1", uid="uid-1")
    ]
    assert (made.metadata.annotations or {})[MIGRATED_PLUGINS] == ",".join(sorted(MIGRATED))
    assert plain(made) == [
        {
            "name": "disk.example.com",
            "nodeID": "i-1",
            "keys": ["example.com/rack", "example.com/zone"],
            "count": 8,
        }
    ]
    assert changed_csi_node(made, [DISK], ()) is None
    assert new_csi_node("node-1", "uid-1", []).spec.drivers == []


@pytest.mark.parametrize(("limit", "count"), [(0, None), (-1, None), (1, 1), (2**40, 2**31 - 1)])
def test_a_limit_is_the_api_s_int32_or_none(limit: int, count: int | None) -> None:
    made = new_csi_node("node-1", "uid-1", [Facts(max_volumes=limit)])
    assert plain(made)[0]["count"] == count
    assert changed_csi_node(made, [Facts(max_volumes=limit)], ()) is None


@pytest.mark.parametrize(
    "other",
    [
        Facts(node_id="i-2", max_volumes=8, topology=DISK.topology),
        Facts(max_volumes=9, topology=DISK.topology),
        Facts(max_volumes=0, topology=DISK.topology),
        Facts(max_volumes=8),
    ],
)
def test_a_changed_entry_goes_last_and_others_stay(other: Facts) -> None:
    stranger = Facts("nfs.example.com")
    found = new_csi_node("node-1", "uid-1", [DISK, stranger])
    changed = changed_csi_node(found, [other], ())
    assert changed is not None
    assert [entry["name"] for entry in plain(changed)] == [stranger.name, other.name]
    assert plain(changed)[1] == plain(new_csi_node("node-1", "uid-1", [other]))[0]
    cleared = without_replaced(found, changed)
    assert cleared is not None
    assert [entry["name"] for entry in plain(cleared)] == [stranger.name]
    assert changed_csi_node(cleared, [other], ()) is not None
    assert without_replaced(cleared, changed) is None


def test_topology_with_other_values_of_the_same_keys_is_no_change() -> None:
    found = new_csi_node("node-1", "uid-1", [DISK])
    moved = Facts(max_volumes=8, topology={"example.com/zone": "b", "example.com/rack": "8"})
    assert changed_csi_node(found, [moved], ()) is None


def test_the_annotation_of_migrated_plugins_is_put_right_and_others_are_kept() -> None:
    meta = ObjectMeta(name="node-1", annotations={"a": "b", MIGRATED_PLUGINS: "kubernetes.io/old"})
    changed = changed_csi_node(CSINode(metadata=meta, spec=CSINodeSpec(drivers=[])), [], ())
    assert changed is not None
    assert changed.metadata is not None
    assert changed.metadata.annotations == {"a": "b", MIGRATED_PLUGINS: ",".join(MIGRATED)}
    shuffled = ",".join(reversed(MIGRATED))
    meta = ObjectMeta(name="node-1", annotations={MIGRATED_PLUGINS: shuffled})
    assert changed_csi_node(CSINode(metadata=meta, spec=CSINodeSpec(drivers=[])), [], ()) is None


def test_whose_object_it_is() -> None:
    own = new_csi_node("node-1", "uid-1", [])
    assert owner_of(own, "node-1", "uid-1") == "uid-1"
    assert owner_of(own, "node-1", "uid-2") == "uid-1"
    assert owner_of(own, "node-2", "uid-1") != "uid-1"
    assert owner_of(CSINode(spec=CSINodeSpec(drivers=[])), "node-1", "uid-1") == ""


def test_the_node_gets_the_driver_s_name_of_it_and_its_topology() -> None:
    patch = node_patch(node({"a": "b"}, '{"nfs.example.com":"n"}'), [DISK], ())
    assert patch == {
        "metadata": {
            "labels": {"example.com/zone": "a", "example.com/rack": "7"},
            "annotations": {NODE_ID: '{"disk.example.com":"i-1","nfs.example.com":"n"}'},
        }
    }
    labels = {"example.com/zone": "a", "example.com/rack": "7"}
    assert node_patch(node(labels, '{"disk.example.com":"i-1"}'), [DISK], ()) == {}


def test_a_driver_that_goes_leaves_its_labels() -> None:
    labels = {"example.com/zone": "a"}
    both = '{"disk.example.com":"i-1","nfs.example.com":"n"}'
    gone = ("disk.example.com",)
    assert node_patch(node(labels, both), [], gone) == {
        "metadata": {"annotations": {NODE_ID: '{"nfs.example.com":"n"}'}}
    }
    last = '{"disk.example.com":"i-1"}'
    assert node_patch(node(labels, last), [], gone) == {
        "metadata": {"annotations": {NODE_ID: None}}
    }
    assert node_patch(node(labels), [], gone) == {}


def test_another_value_of_a_label_is_a_collision() -> None:
    with pytest.raises(CsiNodeError) as refused:
        node_patch(node({"example.com/zone": "b"}), [DISK], ())
    assert str(refused.value) == (
        'detected topology value collision: driver reported "example.com/zone":"a" but existing '
        'label is "example.com/zone":"b"'
    )
    other = Facts("nfs.example.com", topology={"example.com/zone": "b"})
    with pytest.raises(CsiNodeError, match="collision"):
        node_patch(node(), [DISK, other], ())


@pytest.mark.parametrize("text", ["{", "[]", '{"a":1}', "\x00"])
def test_an_annotation_of_somebody_else_is_not_overwritten(text: str) -> None:
    with pytest.raises(CsiNodeError, match=r"failed to parse node's .*nodeid"):
        node_patch(node(annotation=text), [DISK], ())


@given(
    st.dictionaries(st.text(min_size=1), st.text()),
    st.dictionaries(st.text(min_size=1), st.text()),
    st.sets(st.text(min_size=1)),
)
def test_the_annotation_has_what_was_there_and_what_is_new_but_not_what_is_gone(
    before: dict[str, str], installed: dict[str, str], removed: set[str]
) -> None:
    removed -= installed.keys()
    text = json.dumps(before)
    patch = node_patch(
        node(annotation=text), [Facts(name, id_) for name, id_ in installed.items()], removed
    )
    wanted = {k: v for k, v in before.items() if k not in removed} | installed
    marks = patch.get("metadata", {}).get("annotations", {NODE_ID: text})
    assert (json.loads(marks[NODE_ID]) if marks[NODE_ID] is not None else {}) == wanted
