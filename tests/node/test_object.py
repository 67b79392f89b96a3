"""The node's object: what it is registered with, and what of an existing one is put right."""

from __future__ import annotations

from dataclasses import replace

import pytest
from lightkube.models.core_v1 import Node, NodeStatus, Taint
from lightkube.models.meta_v1 import ObjectMeta

from kubelet_trio.node.object import (
    ATTACH_DETACH,
    OBJECT_TTL,
    PROVIDED_IP,
    initial_node,
    metadata_patch,
    node_annotations,
    node_labels,
    object_ttl,
    without_extended,
)
from tests.node.make import IDENTITY


def test_a_node_is_registered_with_the_labels_that_schedulers_look_for() -> None:
    identity = replace(IDENTITY, arch="arm64", labels={"disk": "ssd", "kubernetes.io/os": "other"})
    assert node_labels(identity) == {
        "kubernetes.io/hostname": "node-1",
        "kubernetes.io/os": "other",
        "kubernetes.io/arch": "arm64",
        "beta.kubernetes.io/os": "linux",
        "beta.kubernetes.io/arch": "arm64",
        "disk": "ssd",
    }


def test_taints_tell_of_what_is_not_done_yet() -> None:
    own = Taint(key="dedicated", value="db", effect="NoExecute")
    identity = replace(IDENTITY, taints=(own,), unschedulable=True, external_cloud=True)
    node = initial_node(identity, NodeStatus())
    assert node.spec is not None
    assert node.spec.unschedulable
    assert [(t.key, t.value, t.effect) for t in node.spec.taints or ()] == [
        ("dedicated", "db", "NoExecute"),
        ("node.kubernetes.io/unschedulable", None, "NoSchedule"),
        ("node.cloudprovider.kubernetes.io/uninitialized", "true", "NoSchedule"),
    ]


def test_an_ordinary_node_has_neither_taints_nor_provider() -> None:
    node = initial_node(IDENTITY, NodeStatus())
    assert node.spec is not None
    assert (node.spec.taints, node.spec.providerID, node.spec.unschedulable) == (None, None, None)


def test_the_cloud_is_told_which_addresses_were_asked_for() -> None:
    identity = replace(IDENTITY, external_cloud=True, node_ips=("192.0.2.1", "2001:db8::1"))
    assert node_annotations(identity)[PROVIDED_IP] == "192.0.2.1,2001:db8::1"
    assert PROVIDED_IP not in node_annotations(replace(identity, external_cloud=False))


def existing(
    labels: dict[str, str] | None = None, annotations: dict[str, str] | None = None
) -> Node:
    own = {ATTACH_DETACH: "true"}
    return Node(
        metadata=ObjectMeta(
            name="node-1",
            labels={**node_labels(IDENTITY), **(labels or {})},
            annotations={**own, **(annotations or {})},
        )
    )


def test_an_object_that_is_right_is_left_alone() -> None:
    somebody_elses = existing({"team": "blue"}, {"csi.volume.kubernetes.io/nodeid": "{}"})
    assert metadata_patch(IDENTITY, somebody_elses) == {}


def test_default_labels_are_put_right_and_others_stay() -> None:
    wrong = existing({"kubernetes.io/arch": "s390x", "team": "blue"})
    assert metadata_patch(IDENTITY, wrong) == {"labels": {"kubernetes.io/arch": "amd64"}}


def test_labels_of_the_command_line_are_only_set_at_the_registration() -> None:
    identity = replace(IDENTITY, labels={"disk": "ssd"})
    assert metadata_patch(identity, existing()) == {}


@pytest.mark.parametrize(
    ("identity", "there", "patch"),
    [
        (replace(IDENTITY, attach_detach=False), {}, {ATTACH_DETACH: None}),
        (IDENTITY, {ATTACH_DETACH: "false"}, {ATTACH_DETACH: "true"}),
        (IDENTITY, {PROVIDED_IP: "192.0.2.9"}, {PROVIDED_IP: None}),
    ],
)
def test_annotations_of_the_kubelet_follow_its_settings(
    identity: object, there: dict[str, str], patch: dict[str, str | None]
) -> None:
    found = metadata_patch(identity, existing(annotations=there))  # type: ignore[arg-type]
    assert found == {"annotations": patch}


def test_devices_of_an_earlier_kubelet_are_not_there_any_more() -> None:
    before = NodeStatus(
        capacity={"cpu": "2", "example.com/dongle": "4"}, allocatable={"example.com/dongle": "4"}
    )
    after = without_extended(before)
    assert after.capacity == {"cpu": "2", "example.com/dongle": "0"}
    assert after.allocatable == {"example.com/dongle": "0"}


@pytest.mark.parametrize(
    ("annotations", "seconds"),
    [
        ({OBJECT_TTL: "0"}, 0.0),
        ({OBJECT_TTL: "300"}, 300.0),
        ({OBJECT_TTL: "soon"}, 60.0),
        ({OBJECT_TTL: ""}, 60.0),
        ({"other": "5"}, 60.0),
        (None, 60.0),
    ],
)
def test_the_node_says_how_long_objects_are_kept(
    annotations: dict[str, str] | None, seconds: float
) -> None:
    assert object_ttl(Node(metadata=ObjectMeta(annotations=annotations))) == seconds


def test_a_node_that_is_not_known_keeps_objects_a_minute() -> None:
    assert object_ttl(None) == 60.0
