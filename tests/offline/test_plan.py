"""What is to be on disk, from what the server has said."""

from __future__ import annotations

import datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lightkube.models.core_v1 import (
    AttachedVolume,
    ConfigMap,
    ConfigMapEnvSource,
    Container,
    CSIPersistentVolumeSource,
    EnvFromSource,
    LocalObjectReference,
    Node,
    NodeSpec,
    NodeStatus,
    PersistentVolume,
    PersistentVolumeClaim,
    PersistentVolumeClaimSpec,
    PersistentVolumeClaimVolumeSource,
    PersistentVolumeSpec,
    Pod,
    PodSpec,
    PodStatus,
    Secret,
    SecretReference,
    Volume,
)
from lightkube.models.meta_v1 import ManagedFieldsEntry, ObjectMeta
from lightkube.models.storage_v1 import CSIDriver, CSIDriverSpec

from kubelet_trio.model import PodKey, PodUid, metadata
from kubelet_trio.objects import (
    ApiObject,
    KnownToken,
    ObjectKey,
    TokenRequest,
    claim_key,
    config_map_key,
    csi_driver_key,
    secret_key,
    volume_key,
)
from kubelet_trio.offline.files import (
    NODE,
    SERVICES,
    Item,
    KnownTokens,
    decode,
    encode,
    object_item,
    pod_item,
    tokens_item,
)
from kubelet_trio.offline.plan import ServerState, kept_node, kept_object, kept_pod, plan_pass

CONFIG, SECRET = config_map_key("default", "config"), secret_key("default", "pull")
CLAIM, VOLUME = claim_key("default", "data"), volume_key("pv")


def pod(uid: str = "1", *, phase: str = "Running", refers: bool = True) -> Pod:
    source = EnvFromSource(configMapRef=ConfigMapEnvSource(name="config"))
    claim = PersistentVolumeClaimVolumeSource(claimName="data")
    container = Container(name="main", image="web", envFrom=[source] if refers else None)
    return Pod(
        metadata=ObjectMeta(
            name=f"p{uid}",
            namespace="default",
            uid=uid,
            resourceVersion="7",
            creationTimestamp=datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC),
            managedFields=[ManagedFieldsEntry(manager="x")],
        ),
        spec=PodSpec(
            containers=[container],
            imagePullSecrets=[LocalObjectReference(name="pull")] if refers else None,
            volumes=[Volume(name="data", persistentVolumeClaim=claim)] if refers else None,
        ),
        status=PodStatus(phase=phase, podIP="10.0.0.1"),
    )


def meta(name: str, namespace: str | None = "default") -> ObjectMeta:
    return ObjectMeta(name=name, namespace=namespace)


OBJECTS: dict[ObjectKey, ApiObject | None] = {
    CONFIG: ConfigMap(metadata=meta("config"), data={"a": "1"}),
    SECRET: Secret(metadata=meta("pull")),
    CLAIM: PersistentVolumeClaim(
        metadata=meta("data"), spec=PersistentVolumeClaimSpec(volumeName="pv")
    ),
    VOLUME: PersistentVolume(metadata=meta("pv", None)),
}
ITEMS = {object_item(key) for key in OBJECTS}


def said(*pods: Pod, objects: dict[ObjectKey, Any] | None = None, **more: Any) -> ServerState:
    held = {PodUid(metadata(p).uid or ""): p for p in pods}
    told = {"tokens": {}, "single": {}, **more}
    return ServerState(held, OBJECTS if objects is None else objects, **told)


def test_pods_and_what_they_refer_to_are_written_the_volumes_of_claims_among_it() -> None:
    wanted, gone = plan_pass(said(pod()), set(), set())
    assert wanted.keys() == {pod_item("1"), *ITEMS}
    assert gone == []


def test_what_is_there_and_has_not_changed_is_not_looked_at() -> None:
    there = {pod_item("1"), *ITEMS}
    assert plan_pass(said(pod()), set(), there) == ({}, [])
    wanted, gone = plan_pass(said(pod()), {object_item(CONFIG)}, there)
    assert wanted.keys() == {object_item(CONFIG)}
    assert gone == []


def csi_objects() -> dict[ObjectKey, ApiObject | None]:
    """A CSI volume behind the claim, with its driver and the secret to mount it."""
    secret = SecretReference(name="stage", namespace="storage")
    source = CSIPersistentVolumeSource(
        driver="disk.example.com", volumeHandle="1", nodeStageSecretRef=secret
    )
    return {
        **OBJECTS,
        VOLUME: PersistentVolume(metadata=meta("pv", None), spec=PersistentVolumeSpec(csi=source)),
        csi_driver_key("disk.example.com"): CSIDriver(
            spec=CSIDriverSpec(attachRequired=False), metadata=meta("disk.example.com", None)
        ),
        secret_key("storage", "stage"): Secret(metadata=meta("stage", "storage")),
    }


def test_what_the_node_needs_to_mount_a_csi_volume_is_kept_with_it() -> None:
    objects = csi_objects()
    wanted, _ = plan_pass(said(pod(), objects=objects), set(), set())
    assert wanted.keys() == {pod_item("1"), *(object_item(key) for key in objects)}
    for item, value in wanted.items():
        assert decode(encode(item, value)[0])[:2] == (item, value)


def test_what_a_volume_needs_stays_until_the_volume_is_read() -> None:
    objects = csi_objects()
    there = {object_item(key) for key in objects}
    unread = {key: value for key, value in objects.items() if key != VOLUME}
    _, gone = plan_pass(said(pod(), objects=unread), set(), there)
    assert gone == []
    other = {**objects, VOLUME: PersistentVolume(metadata=meta("pv", None))}
    _, gone = plan_pass(said(pod(), objects=other), set(), there)
    assert set(gone) == there - ITEMS


def test_what_no_pod_refers_to_is_not_kept() -> None:
    there = {pod_item("1"), pod_item("2"), tokens_item("2"), *ITEMS}
    wanted, gone = plan_pass(said(pod(refers=False)), set(), there)
    assert wanted == {}
    assert set(gone) == there - {pod_item("1")}


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_is_over_is_known_as_such_and_needs_nothing(phase: str) -> None:
    wanted, _ = plan_pass(said(pod(phase=phase)), set(), set())
    assert wanted.keys() == {pod_item("1")}
    assert wanted[pod_item("1")].status.phase == phase


def test_what_the_server_has_not_been_asked_for_yet_stays() -> None:
    there = {pod_item("1"), *ITEMS}
    assert plan_pass(said(pod(), objects={}), set(), there) == ({}, [])


def test_what_the_server_says_is_not_there_goes() -> None:
    there = {pod_item("1"), *ITEMS}
    objects = {**OBJECTS, CONFIG: None}
    wanted, gone = plan_pass(said(pod(), objects=objects), {object_item(CONFIG)}, there)
    assert (wanted, gone) == ({}, [object_item(CONFIG)])


def test_a_claim_that_is_bound_to_another_volume_drops_the_first() -> None:
    there = {pod_item("1"), *ITEMS}
    claim = PersistentVolumeClaim(
        metadata=meta("data"), spec=PersistentVolumeClaimSpec(volumeName="other")
    )
    _, gone = plan_pass(said(pod(), objects={**OBJECTS, CLAIM: claim}), set(), there)
    assert gone == [object_item(VOLUME)]


def test_tokens_go_with_their_pod_and_single_things_stay() -> None:
    uid = PodUid("1")
    request = TokenRequest(PodKey("default", "p1"), uid, "default")
    tokens = KnownTokens(uid, ((request, KnownToken("t", 1.0, 2.0)),))
    told: dict[str, Any] = {"tokens": {uid: tokens}, "single": {SERVICES: (), NODE: Node()}}
    dirty = {tokens_item("1"), SERVICES, NODE}
    wanted, _ = plan_pass(said(pod(refers=False), **told), dirty, {pod_item("1")})
    assert wanted.keys() == dirty
    _, gone = plan_pass(said(**told), dirty, dirty | {pod_item("1")})
    assert set(gone) == {pod_item("1"), tokens_item("1")}


def test_of_a_pod_what_changes_all_the_time_is_not_kept() -> None:
    one, other = pod(), pod()
    meta = msgspec.structs.replace(metadata(other), resourceVersion="8")
    other = msgspec.structs.replace(
        other, metadata=meta, status=PodStatus(phase="Pending", podIP="10.0.0.2")
    )
    item = pod_item("1")
    assert encode(item, kept_pod(one)) == encode(item, kept_pod(other))
    _, found, _ = decode(encode(item, kept_pod(one))[0])
    assert found == kept_pod(one)


def test_of_a_node_what_admission_asks_for_is_kept() -> None:
    node = Node(
        metadata=ObjectMeta(name="n", labels={"a": "b"}, resourceVersion="1"),
        spec=NodeSpec(podCIDR="10.0.0.0/24"),
        status=NodeStatus(phase="x"),
    )
    assert kept_node(node) == Node(
        metadata=ObjectMeta(name="n", labels={"a": "b"}), spec=NodeSpec()
    )


def test_the_attached_volumes_of_the_node_are_kept() -> None:
    attached = [AttachedVolume(name="a", devicePath="/dev/x")]
    status = NodeStatus(phase="x", volumesAttached=attached, volumesInUse=["a"])
    kept = NodeStatus(volumesAttached=attached, volumesInUse=["a"])
    found = kept_node(Node(metadata=ObjectMeta(name="n"), status=status))
    assert found == Node(metadata=ObjectMeta(name="n"), spec=NodeSpec(), status=kept)


def test_managed_fields_are_not_kept() -> None:
    value = Secret(metadata=ObjectMeta(name="a", managedFields=[ManagedFieldsEntry(manager="x")]))
    assert kept_object(value) == Secret(metadata=ObjectMeta(name="a"))


def test_a_pass_that_is_done_leaves_nothing_to_do() -> None:
    there: set[Item] = set()
    for state in (said(pod(), pod("2", refers=False)), said(pod("2", refers=False))):
        wanted, gone = plan_pass(state, set(), there)
        there = (there | wanted.keys()) - set(gone)
        assert plan_pass(state, set(), there) == ({}, [])


@given(
    st.lists(
        st.tuples(st.sampled_from("123"), st.sampled_from(["Running", "Failed"]), st.booleans())
    ),
    st.sets(st.sampled_from(sorted({pod_item("1"), tokens_item("3"), *ITEMS}))),
)
def test_secrets_are_on_disk_exactly_while_a_pod_that_is_not_over_needs_them(
    pods: list[tuple[str, str, bool]], there: set[Item]
) -> None:
    state = said(*(pod(uid, phase=phase, refers=refers) for uid, phase, refers in pods))
    wanted, gone = plan_pass(state, set(), there)
    after = (there | wanted.keys()) - set(gone)
    needed = any(
        p.status is not None and p.status.phase == "Running" and p.spec and p.spec.imagePullSecrets
        for p in state.pods.values()
    )
    assert after & ITEMS == (ITEMS if needed else set())
    assert {i for i in after if i.kind == "Pod"} == {pod_item(uid) for uid in state.pods}
    assert not wanted.keys() & set(gone)
