"""What an API server does, asked of the fake and of a real one alike."""

from __future__ import annotations

import datetime
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import trio
from lightkube.models.authentication_v1 import (
    BoundObjectReference,
    TokenRequest,
    TokenRequestSpec,
    TokenReview,
    TokenReviewSpec,
)
from lightkube.models.coordination_v1 import Lease, LeaseSpec
from lightkube.models.core_v1 import (
    ConfigMap,
    ConfigMapVolumeSource,
    Container,
    Node,
    NodeCondition,
    NodeSpec,
    NodeStatus,
    Pod,
    PodSpec,
    Secret,
    ServiceAccount,
    Volume,
)
from lightkube.models.meta_v1 import ObjectMeta, OwnerReference
from lightkube.models.policy_v1 import Eviction

from kubelet_trio.kube import (
    AlreadyExistsError,
    Bookmark,
    ConflictError,
    GoneError,
    KubeApi,
    KubeError,
    NotFoundError,
    PatchKind,
    WatchEvent,
    WatchEventKind,
    make_strategic,
    to_json,
)
from tests.kube.servers import Place

ADDED, MODIFIED, DELETED = WatchEventKind.ADDED, WatchEventKind.MODIFIED, WatchEventKind.DELETED


def pod(name: str = "web", node: str = "", **meta: object) -> Pod:
    spec = PodSpec(
        containers=[Container(name="main", image="registry.example/web:1")],
        nodeName=node or None,
        serviceAccountName="default",
        automountServiceAccountToken=False,
    )
    return Pod(metadata=ObjectMeta(name=name, **meta), spec=spec)  # type: ignore[arg-type]


def config_map(name: str = "settings", **data: str) -> ConfigMap:
    return ConfigMap(metadata=ObjectMeta(name=name), data=data or None)


def version(obj: object) -> str:
    found = obj.metadata.resourceVersion  # type: ignore[attr-defined]
    assert isinstance(found, str)
    return found


async def following(
    events: AsyncIterator[WatchEvent[Pod] | Bookmark], count: int
) -> list[tuple[WatchEventKind, Pod]]:
    """Return the next events, bookmarks left out."""
    found: list[tuple[WatchEventKind, Pod]] = []
    with trio.fail_after(60):
        async for event in events:
            if isinstance(event, WatchEvent):
                found.append((event.kind, event.object))
                if len(found) == count:
                    break
    return found


async def test_a_new_object_gets_uid_version_and_time(api: KubeApi, place: Place) -> None:
    made = await api.create(config_map(), namespace=place.namespace)
    assert made.metadata is not None
    assert made.metadata.uid
    assert made.metadata.namespace == place.namespace
    assert isinstance(made.metadata.creationTimestamp, datetime.datetime)
    assert await api.get(ConfigMap, "settings", namespace=place.namespace) == made


async def test_a_name_can_be_generated(api: KubeApi, place: Place) -> None:
    template = ConfigMap(metadata=ObjectMeta(generateName="some-"))
    made = await api.create(template, namespace=place.namespace)
    assert made.metadata is not None
    assert made.metadata.name is not None
    assert made.metadata.name.startswith("some-")
    assert len(made.metadata.name) == len("some-") + 5


async def test_a_second_one_of_the_name_is_refused(api: KubeApi, place: Place) -> None:
    await api.create(config_map(), namespace=place.namespace)
    with pytest.raises(AlreadyExistsError) as refused:
        await api.create(config_map(), namespace=place.namespace)
    assert refused.value.message == 'configmaps "settings" already exists'


async def test_what_is_not_there_is_not_found(api: KubeApi, place: Place) -> None:
    with pytest.raises(NotFoundError) as refused:
        await api.get(Pod, "none", namespace=place.namespace)
    assert (refused.value.reason, refused.value.message) == ("NotFound", 'pods "none" not found')
    with pytest.raises(NotFoundError):
        await api.create(config_map(), namespace="no-such-namespace")
    with pytest.raises(NotFoundError):
        await api.delete(Pod, "none", namespace=place.namespace)


@pytest.mark.parametrize("name", ["Upper", "under_score", "-dash"])
async def test_a_bad_name_is_invalid(api: KubeApi, place: Place, name: str) -> None:
    with pytest.raises(KubeError) as refused:
        await api.create(config_map(name), namespace=place.namespace)
    assert (refused.value.code, refused.value.reason) == (422, "Invalid")


async def test_an_update_of_an_old_version_conflicts(api: KubeApi, place: Place) -> None:
    first = await api.create(config_map(a="1"), namespace=place.namespace)
    second = await api.update(
        ConfigMap(metadata=first.metadata, data={"a": "2"}), namespace=place.namespace
    )
    assert version(second) != version(first)
    with pytest.raises(ConflictError) as refused:
        await api.update(
            ConfigMap(metadata=first.metadata, data={"a": "3"}), namespace=place.namespace
        )
    assert refused.value.reason == "Conflict"
    assert "the object has been modified" in refused.value.message


async def test_an_update_that_changes_nothing_makes_no_version(api: KubeApi, place: Place) -> None:
    first = await api.create(config_map(a="1"), namespace=place.namespace)
    again = await api.update(first, namespace=place.namespace)
    assert version(again) == version(first)
    patched = await api.patch(
        ConfigMap, "settings", {"data": {"a": "1"}}, namespace=place.namespace
    )
    assert version(patched) == version(first)


async def test_a_lease_is_updated_at_a_version_only(api: KubeApi, place: Place) -> None:
    now = datetime.datetime(2026, 1, 1, 12, 0, 0, tzinfo=datetime.UTC)
    spec = LeaseSpec(holderIdentity="n1", leaseDurationSeconds=40, renewTime=now)
    made = await api.create(
        Lease(metadata=ObjectMeta(name="n1"), spec=spec), namespace=place.namespace
    )
    assert made.spec is not None
    assert made.spec.renewTime == now
    assert made.metadata is not None
    later = now + datetime.timedelta(seconds=10, microseconds=5)
    made.spec.renewTime = later
    renewed = await api.update(made, namespace=place.namespace)
    assert renewed.spec is not None
    assert renewed.spec.renewTime == later
    with pytest.raises(KubeError) as refused:
        await api.update(
            Lease(metadata=ObjectMeta(name="n1"), spec=spec), namespace=place.namespace
        )
    assert refused.value.code == 422
    assert "must be specified for an update" in refused.value.message


async def test_an_immutable_secret_stays(api: KubeApi, place: Place) -> None:
    secret = Secret(metadata=ObjectMeta(name="s"), immutable=True, stringData={"a": "1"})
    made = await api.create(secret, namespace=place.namespace)
    assert made.data == {"a": "MQ=="}
    with pytest.raises(KubeError) as refused:
        await api.patch(Secret, "s", {"data": {"a": "Mg=="}}, namespace=place.namespace)
    assert refused.value.code == 422
    assert "field is immutable when `immutable` is set" in refused.value.message


async def test_a_new_pod_is_pending_whatever_it_says(api: KubeApi, place: Place) -> None:
    template = pod()
    made = await api.create(template, namespace=place.namespace)
    assert made.status is not None
    assert (made.status.phase, made.status.qosClass) == ("Pending", "BestEffort")
    assert made.spec is not None
    assert made.spec.restartPolicy == "Always"
    assert made.spec.terminationGracePeriodSeconds == 30
    assert made.spec.schedulerName == "default-scheduler"


async def test_a_status_changes_by_its_subresource_only(api: KubeApi, place: Place) -> None:
    await api.create(pod(), namespace=place.namespace)
    patch = {"status": {"phase": "Running"}}
    plain = await api.patch(Pod, "web", patch, namespace=place.namespace)
    assert plain.status is not None
    assert plain.status.phase == "Pending"
    changed = await api.patch(Pod, "web", patch, namespace=place.namespace, subresource="status")
    assert changed.status is not None
    assert changed.status.phase == "Running"
    other = await api.patch(
        Pod,
        "web",
        {"spec": {"activeDeadlineSeconds": 5}},
        namespace=place.namespace,
        subresource="status",
    )
    assert other.spec is not None
    assert other.spec.activeDeadlineSeconds is None


async def test_a_pods_spec_is_fixed(api: KubeApi, place: Place) -> None:
    await api.create(pod(), namespace=place.namespace)
    with pytest.raises(KubeError) as refused:
        await api.patch(Pod, "web", {"spec": {"restartPolicy": "Never"}}, namespace=place.namespace)
    assert refused.value.code == 422
    assert "pod updates may not change fields other than" in refused.value.message
    image = {"spec": {"containers": [{"name": "main", "image": "registry.example/web:2"}]}}
    changed = await api.patch(Pod, "web", image, namespace=place.namespace)
    assert changed.spec is not None
    assert changed.spec.containers[0].image == "registry.example/web:2"


async def test_another_uid_is_refused(api: KubeApi, place: Place) -> None:
    made = await api.create(pod(), namespace=place.namespace)
    assert made.metadata is not None
    patch = {"metadata": {"uid": "another"}, "status": {"phase": "Running"}}
    with pytest.raises(KubeError) as invalid:
        await api.patch(Pod, "web", patch, namespace=place.namespace, subresource="status")
    assert invalid.value.code == 422
    assert "metadata.uid" in invalid.value.message
    made.metadata.uid = "another"
    with pytest.raises(ConflictError) as refused:
        await api.update(made, namespace=place.namespace)
    assert "UID in precondition: another" in refused.value.message


async def test_conditions_merge_by_type(api: KubeApi, place: Place) -> None:
    await api.create(pod(), namespace=place.namespace)

    async def status(**fields: object) -> Pod:
        return await api.patch(
            Pod, "web", {"status": fields}, namespace=place.namespace, subresource="status"
        )

    await status(conditions=[{"type": "Ready", "status": "False", "reason": "Why"},
                             {"type": "example.org/gate", "status": "True"}])  # fmt: skip
    after = await status(conditions=[{"type": "Ready", "status": "True", "reason": None}])
    assert after.status is not None
    shown = {c.type: (c.status, c.reason) for c in after.status.conditions or ()}
    assert shown == {"Ready": ("True", None), "example.org/gate": ("True", None)}
    after = await status(conditions=[{"$patch": "delete", "type": "Ready"}])
    assert after.status is not None
    assert [c.type for c in after.status.conditions or ()] == ["example.org/gate"]


async def test_container_statuses_are_replaced(api: KubeApi, place: Place) -> None:
    await api.create(pod(), namespace=place.namespace)
    one = {"name": "main", "image": "i", "imageID": "", "ready": True, "restartCount": 3}
    body = {"status": {"containerStatuses": [one, {**one, "name": "other"}]}}
    where = {"namespace": place.namespace, "subresource": "status"}
    await api.patch(Pod, "web", body, **where)  # type: ignore[arg-type]
    body = {"status": {"containerStatuses": [{**one, "restartCount": 4}]}}
    after = await api.patch(Pod, "web", body, **where)  # type: ignore[arg-type]
    assert after.status is not None
    shown = [(c.name, c.restartCount) for c in after.status.containerStatuses or ()]
    assert shown == [("main", 4)]


async def test_a_made_patch_leads_where_it_should(api: KubeApi, place: Place) -> None:
    node = await api.create(
        Node(
            metadata=ObjectMeta(name=place.unique("node"), labels={"a": "1", "b": "2"}),
            status=NodeStatus(
                capacity={"cpu": "2", "example.org/gone": "1"},
                conditions=[
                    NodeCondition(type="Ready", status="False", reason="Starting"),
                    NodeCondition(type="NetworkUnavailable", status="False"),
                ],
            ),
        )
    )
    assert node.metadata is not None
    assert node.metadata.name is not None
    before = to_json(node)
    after = to_json(node)
    after["status"]["conditions"][0] |= {"status": "True", "reason": "KubeletReady"}
    after["status"]["addresses"] = [{"type": "InternalIP", "address": "192.0.2.1"}]
    del after["status"]["capacity"]["example.org/gone"]
    patch = make_strategic(before, after, "Node")
    done = await api.patch(Node, node.metadata.name, patch, subresource="status")
    assert done.status is not None
    assert to_json(done.status) == after["status"]
    assert make_strategic(after, after, "Node") == {}


async def test_a_new_node_is_tainted_until_it_is_ready(api: KubeApi, place: Place) -> None:
    node = Node(metadata=ObjectMeta(name=place.unique("node")), spec=NodeSpec(unschedulable=True))
    made = await api.create(node)
    assert made.spec is not None
    taints = {(taint.key, taint.effect) for taint in made.spec.taints or ()}
    assert ("node.kubernetes.io/not-ready", "NoSchedule") in taints


async def test_a_json_patch_and_a_merge_patch(api: KubeApi, place: Place) -> None:
    await api.create(config_map(a="1", b="2"), namespace=place.namespace)
    done = await api.patch(
        ConfigMap, "settings", {"data": {"a": None, "c": "3"}},
        namespace=place.namespace, kind=PatchKind.MERGE,
    )  # fmt: skip
    assert done.data == {"b": "2", "c": "3"}
    operations = [
        {"op": "test", "path": "/data/b", "value": "2"},
        {"op": "replace", "path": "/data/b", "value": "4"},
        {"op": "remove", "path": "/data/c"},
    ]
    done = await api.patch(
        ConfigMap, "settings", operations, namespace=place.namespace, kind=PatchKind.JSON
    )
    assert done.data == {"b": "4"}
    with pytest.raises(KubeError) as refused:
        await api.patch(
            ConfigMap, "settings", operations, namespace=place.namespace, kind=PatchKind.JSON
        )
    assert refused.value.code == 422


async def test_a_pod_without_a_node_is_deleted_at_once(api: KubeApi, place: Place) -> None:
    await api.create(pod(), namespace=place.namespace)
    await api.delete(Pod, "web", namespace=place.namespace)
    with pytest.raises(NotFoundError):
        await api.get(Pod, "web", namespace=place.namespace)


async def test_a_pod_of_a_node_stays_until_its_grace_is_zero(api: KubeApi, place: Place) -> None:
    await api.create(pod(node="n1"), namespace=place.namespace)
    await api.delete(Pod, "web", namespace=place.namespace)
    first = (await api.get(Pod, "web", namespace=place.namespace)).metadata
    assert first is not None
    assert first.deletionGracePeriodSeconds == 30
    assert first.deletionTimestamp is not None
    # Grace may only shrink.
    await api.delete(Pod, "web", namespace=place.namespace, grace_period=60)
    assert (await api.get(Pod, "web", namespace=place.namespace)).metadata == first
    await api.delete(Pod, "web", namespace=place.namespace, grace_period=10)
    second = (await api.get(Pod, "web", namespace=place.namespace)).metadata
    assert second is not None
    assert second.deletionGracePeriodSeconds == 10
    assert second.deletionTimestamp is not None
    assert first.deletionTimestamp - second.deletionTimestamp == datetime.timedelta(seconds=20)
    await api.delete(Pod, "web", namespace=place.namespace, grace_period=0)
    with pytest.raises(NotFoundError):
        await api.get(Pod, "web", namespace=place.namespace)


async def test_preconditions_of_a_deletion(api: KubeApi, place: Place) -> None:
    made = await api.create(pod(node="n1"), namespace=place.namespace)
    assert made.metadata is not None
    assert made.metadata.uid is not None
    for wrong in ({"uid": "another"}, {"resource_version": "1"}):
        with pytest.raises(ConflictError) as refused:
            await api.delete(Pod, "web", namespace=place.namespace, **wrong)  # type: ignore[arg-type]
        assert "recondition" in refused.value.message
    await api.delete(
        Pod, "web", namespace=place.namespace, grace_period=0, uid=made.metadata.uid,
        resource_version=version(made),
    )  # fmt: skip


async def test_a_finalizer_keeps_what_is_deleted(api: KubeApi, place: Place) -> None:
    meta = ObjectMeta(name="kept", finalizers=["example.org/one"])
    await api.create(ConfigMap(metadata=meta), namespace=place.namespace)
    await api.delete(ConfigMap, "kept", namespace=place.namespace)
    kept = await api.get(ConfigMap, "kept", namespace=place.namespace)
    assert kept.metadata is not None
    assert kept.metadata.deletionTimestamp is not None
    await api.patch(
        ConfigMap, "kept", {"metadata": {"finalizers": None}}, namespace=place.namespace
    )
    with pytest.raises(NotFoundError):
        await api.get(ConfigMap, "kept", namespace=place.namespace)


async def test_a_list_comes_in_pages_of_one_moment(api: KubeApi, place: Place) -> None:
    for number in range(5):
        await api.create(config_map(f"c{number}"), namespace=place.namespace)
    first = await api.list(ConfigMap, namespace=place.namespace, field_selector=CONFIGS, limit=2)
    await api.delete(ConfigMap, "c3", namespace=place.namespace)
    names, page = [], first
    while True:
        names += [item.metadata.name for item in page.items if item.metadata is not None]
        if not page.continue_token:
            break
        page = await api.list(
            ConfigMap, namespace=place.namespace, field_selector=CONFIGS, limit=2,
            continue_token=page.continue_token,
        )  # fmt: skip
    assert names == [f"c{number}" for number in range(5)]


# Real clusters put a certificate into each namespace.
CONFIGS = "metadata.name!=kube-root-ca.crt"


@pytest.mark.parametrize(
    ("fields", "labels", "found"),
    [
        ("spec.nodeName=n1", "", ["a"]),
        ("spec.nodeName!=n1", "", ["b", "c"]),
        ("metadata.name=b", "", ["b"]),
        ("metadata.name=b,spec.nodeName=n1", "", []),
        ("", "tier=front", ["a", "b"]),
        ("", "tier in (back, none)", ["c"]),
        ("", "tier notin (front),tier", ["c"]),
        ("", "!tier", []),
        ("spec.nodeName=", "tier=front", []),
    ],
)
async def test_selectors(
    api: KubeApi, place: Place, fields: str, labels: str, found: list[str]
) -> None:
    for name, node, tier in (("a", "n1", "front"), ("b", "n2", "front"), ("c", "n2", "back")):
        template = pod(name, node, labels={"tier": tier})
        await api.create(template, namespace=place.namespace)
    listing = await api.list(
        Pod, namespace=place.namespace, field_selector=fields, label_selector=labels
    )
    assert [item.metadata.name for item in listing.items if item.metadata] == found


async def test_an_unknown_field_cannot_be_selected_by(api: KubeApi, place: Place) -> None:
    with pytest.raises(KubeError) as refused:
        await api.list(Pod, namespace=place.namespace, field_selector="spec.dnsPolicy=Default")
    assert refused.value.code == 400


async def test_a_watch_tells_what_came_after_a_version(api: KubeApi, place: Place) -> None:
    listing = await api.list(Pod, namespace=place.namespace)
    made = await api.create(pod(node="n1"), namespace=place.namespace)
    async with api.watch(
        Pod, namespace=place.namespace, resource_version=listing.resource_version
    ) as events:
        assert await following(events, 1) == [(ADDED, made)]
        await api.delete(Pod, "web", namespace=place.namespace)
        await api.delete(Pod, "web", namespace=place.namespace, grace_period=0)
        # Marked, marked with no grace left, and gone.
        (first, marked), (second, _), (third, gone) = await following(events, 3)
        assert (first, second, third) == (MODIFIED, MODIFIED, DELETED)
        assert marked.metadata is not None
        assert marked.metadata.deletionGracePeriodSeconds == 30
        assert int(version(gone)) > int(version(marked))
    async with api.watch(
        Pod, namespace=place.namespace, resource_version=version(marked)
    ) as events:
        assert [kind for kind, _ in await following(events, 2)] == [MODIFIED, DELETED]


async def test_a_watch_without_a_version_begins_with_what_is_there(
    api: KubeApi, place: Place
) -> None:
    made = await api.create(pod(), namespace=place.namespace)
    async with api.watch(Pod, namespace=place.namespace) as events:
        assert await following(events, 1) == [(ADDED, made)]


async def test_what_enters_and_leaves_a_filter(api: KubeApi, place: Place) -> None:
    await api.create(pod(), namespace=place.namespace)
    listing = await api.list(Pod, namespace=place.namespace)
    async with api.watch(
        Pod, namespace=place.namespace, label_selector="on=yes",
        resource_version=listing.resource_version,
    ) as events:  # fmt: skip
        for labels in ({"on": "yes"}, {"x": "1"}, {"on": "no"}):
            await api.patch(Pod, "web", {"metadata": {"labels": labels}}, namespace=place.namespace)
        found = await following(events, 3)
    assert [kind for kind, _ in found] == [ADDED, MODIFIED, DELETED]
    versions = [int(version(obj)) for _, obj in found]
    assert versions == sorted(set(versions))


async def test_a_watch_ends_after_its_time(api: KubeApi, place: Place) -> None:
    listing = await api.list(Pod, namespace=place.namespace)
    with trio.fail_after(60):
        async with api.watch(
            Pod, namespace=place.namespace, resource_version=listing.resource_version, timeout=1
        ) as events:
            assert [event async for event in events if isinstance(event, WatchEvent)] == []


async def test_a_version_that_never_was_or_is_forgotten_is_gone(place: Place) -> None:
    old = await place.forgotten_version()

    async def watch() -> None:
        async with place.api.watch(Pod, namespace=place.namespace, resource_version=old) as events:
            await following(events, 1)

    with pytest.raises(GoneError) as refused:
        await watch()
    assert refused.value.code == 410


async def test_a_pod_is_bound_once(api: KubeApi, place: Place) -> None:
    await api.create(pod(), namespace=place.namespace)
    await place.bind("web", "n1")
    bound = await api.get(Pod, "web", namespace=place.namespace)
    assert bound.spec is not None
    assert bound.spec.nodeName == "n1"
    assert bound.status is not None
    assert [(c.type, c.status) for c in bound.status.conditions or ()] == [("PodScheduled", "True")]
    with pytest.raises(ConflictError):
        await place.bind("web", "n2")


async def test_a_token_is_bound_to_its_pod(api: KubeApi, place: Place) -> None:
    made = await api.create(pod(node="n1"), namespace=place.namespace)
    assert made.metadata is not None

    def request(uid: str | None) -> TokenRequest:
        bound = BoundObjectReference(apiVersion="v1", kind="Pod", name="web", uid=uid)
        spec = TokenRequestSpec(audiences=[], boundObjectRef=bound, expirationSeconds=900)
        return TokenRequest(spec=spec)

    where = {"namespace": place.namespace, "name": "default", "subresource": "token"}
    answer = await api.create(request(made.metadata.uid), **where)
    assert answer.status is not None
    assert answer.spec is not None
    assert answer.status.expirationTimestamp is not None
    review = await api.create(TokenReview(spec=TokenReviewSpec(token=answer.status.token or "")))
    assert review.status is not None
    assert review.status.authenticated is True
    assert review.status.user is not None
    expected = f"system:serviceaccount:{place.namespace}:default"
    assert review.status.user.username == expected
    with pytest.raises(ConflictError):
        await api.create(request("another"), **where)
    with pytest.raises(NotFoundError):
        await api.create(request(made.metadata.uid), **{**where, "name": "nobody"})
    unknown = await api.create(TokenReview(spec=TokenReviewSpec(token="nonsense")))
    assert unknown.status is not None
    assert not unknown.status.authenticated


async def test_an_account_is_found(api: KubeApi, place: Place) -> None:
    found = await api.get(ServiceAccount, "default", namespace=place.namespace)
    assert found.metadata is not None
    assert found.metadata.namespace == place.namespace


async def test_an_eviction_deletes(api: KubeApi, place: Place) -> None:
    await api.create(pod(), namespace=place.namespace)
    eviction = Eviction(metadata=ObjectMeta(name="web", namespace=place.namespace))
    with place.evictions():
        await api.create(eviction, namespace=place.namespace, name="web", subresource="eviction")
        with pytest.raises(NotFoundError):
            await api.get(Pod, "web", namespace=place.namespace)


MIRROR = "kubernetes.io/config.mirror"


async def test_what_a_node_may_do(api: KubeApi, place: Place) -> None:
    name = place.unique("node")
    here = place.namespace
    async with place.as_node(name) as node:
        made = await node.create(Node(metadata=ObjectMeta(name=name)))
        assert made.metadata is not None
        await node.patch(Node, name, {"metadata": {"labels": {"node.kubernetes.io/x": "1"}}})
        lease = Lease(metadata=ObjectMeta(name=name), spec=LeaseSpec(holderIdentity=name))
        await node.create(lease, namespace="kube-node-lease")
        owner = OwnerReference(
            apiVersion="v1", kind="Node", name=name, uid=made.metadata.uid or "", controller=True
        )
        mirror = pod("mirror", name, annotations={MIRROR: "hash"}, ownerReferences=[owner])
        assert mirror.spec is not None
        mirror.spec.serviceAccountName = None
        await node.create(mirror, namespace=here)
        await node.patch(
            Pod, "mirror", {"status": {"phase": "Running"}}, namespace=here, subresource="status"
        )
        await node.delete(Pod, "mirror", namespace=here, grace_period=0)
        found = await node.list(Pod, field_selector=f"spec.nodeName={name}")
        assert found.items == ()


async def test_what_a_node_may_not_do(api: KubeApi, place: Place) -> None:
    name, here = place.unique("node"), place.namespace
    await api.create(config_map("unused"), namespace=here)
    await api.create(pod("other", "another-node"), namespace=here)
    status = {"status": {"phase": "Running"}}
    token = TokenRequest(spec=TokenRequestSpec(audiences=[]))
    mirror = pod("mirror", "another-node", annotations={MIRROR: "hash"})
    reserved = {"metadata": {"labels": {"node-restriction.kubernetes.io/x": "1"}}}
    taints = {"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}}
    async with place.as_node(name) as node:
        await node.create(Node(metadata=ObjectMeta(name=name)))
        attempts: list[Callable[[], Awaitable[object]]] = [
            lambda: node.create(Node(metadata=ObjectMeta(name="another-node"))),
            lambda: node.patch(Node, name, reserved),
            lambda: node.patch(Node, name, taints),
            lambda: node.create(pod("plain", name), namespace=here),
            lambda: node.create(mirror, namespace=here),
            lambda: node.patch(Pod, "other", status, namespace=here, subresource="status"),
            lambda: node.patch(Pod, "other", reserved, namespace=here),
            lambda: node.delete(Pod, "other", namespace=here, grace_period=0),
            lambda: node.get(ConfigMap, "unused", namespace=here),
            lambda: node.list(Secret),
            lambda: node.create(token, namespace=here, name="default", subresource="token"),
            lambda: node.create(Lease(metadata=ObjectMeta(name=name)), namespace=here),
        ]
        for number, attempt in enumerate(attempts):
            with pytest.raises(KubeError) as refused:
                await attempt()
            assert (number, refused.value.code, refused.value.reason) == (number, 403, "Forbidden")


async def test_what_a_pod_uses_its_node_may_read(api: KubeApi, place: Place) -> None:
    name, here = place.unique("node"), place.namespace
    await api.create(config_map("used"), namespace=here)
    template = pod("user", name)
    assert template.spec is not None
    template.spec.volumes = [Volume(name="v", configMap=ConfigMapVolumeSource(name="used"))]
    async with place.as_node(name) as node:
        await node.create(Node(metadata=ObjectMeta(name=name)))
        await api.create(template, namespace=here)
        # The authoriser's graph follows the pods with a delay.
        with trio.fail_after(60):
            while True:
                try:
                    await node.get(ConfigMap, "used", namespace=here)
                except KubeError as exc:
                    assert exc.code == 403  # noqa: PT017  # not yet
                    await trio.sleep(0.1)
                else:
                    break
        selected = "metadata.name=used"
        listing = await node.list(ConfigMap, namespace=here, field_selector=selected)
        assert len(listing.items) == 1
