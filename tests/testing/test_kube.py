"""What the fake API server does beyond the rules of a real one: faults, and a node's rights."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from lightkube.models.authentication_v1 import (
    BoundObjectReference,
    TokenRequest,
    TokenRequestSpec,
)
from lightkube.models.coordination_v1 import Lease, LeaseSpec
from lightkube.models.core_v1 import (
    ConfigMap,
    ConfigMapVolumeSource,
    Container,
    CSIPersistentVolumeSource,
    Node,
    PersistentVolume,
    PersistentVolumeClaim,
    PersistentVolumeClaimSpec,
    PersistentVolumeClaimVolumeSource,
    PersistentVolumeSpec,
    Pod,
    PodSpec,
    Secret,
    SecretReference,
    ServiceAccount,
    Volume,
)
from lightkube.models.meta_v1 import ObjectMeta, OwnerReference
from lightkube.models.storage_v1 import (
    CSIDriver,
    CSIDriverSpec,
    CSINode,
    CSINodeSpec,
    VolumeAttachment,
    VolumeAttachmentSource,
    VolumeAttachmentSpec,
)
from trio.testing import MockClock, wait_all_tasks_blocked

from kubelet_trio.kube import (
    KubeApi,
    KubeError,
    KubeUnavailableError,
    NotFoundError,
    WatchEvent,
    WatchEventKind,
)
from kubelet_trio.testing import FakeKube, KubeFaultKind

MIRROR = "kubernetes.io/config.mirror"


def pod(name: str = "web", node: str = "n1", **more: Any) -> Pod:
    meta = ObjectMeta(name=name, annotations=more.pop("annotations", None))
    containers = [Container(name="main", image="i")]
    return Pod(metadata=meta, spec=PodSpec(containers=containers, nodeName=node, **more))


def config_map(name: str = "a") -> ConfigMap:
    return ConfigMap(metadata=ObjectMeta(name=name))


def satisfies(api: KubeApi) -> KubeApi:
    """Show mypy that it is one."""
    return api


async def get(kube: FakeKube) -> ConfigMap:
    return await satisfies(kube).get(ConfigMap, "a", namespace="default")


async def test_a_server_that_is_down_breaks_what_is_in_flight(autojump_clock: MockClock) -> None:
    kube = FakeKube()
    kube.add(config_map())
    kube.latency = 5
    refused: list[str] = []

    async def ask() -> None:
        try:
            await get(kube)
        except KubeUnavailableError as exc:
            refused.append(str(exc))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await trio.sleep(1)
        kube.go_down()
        nursery.start_soon(ask)
    assert sorted(refused) == [
        "get configmaps: connection refused",
        "get configmaps: connection reset",
    ]
    kube.come_back()
    assert (await get(kube)).metadata is not None


async def test_a_hanging_server_answers_late_or_never(autojump_clock: MockClock) -> None:
    kube = FakeKube()
    kube.add(config_map())
    kube.hang()
    with pytest.raises(KubeUnavailableError, match="no answer in time"):
        await get(kube)
    assert trio.current_time() == pytest.approx(30)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(get, kube)
        await trio.sleep(5)
        kube.come_back()


async def test_a_watch_that_went_mute_stays_so_and_a_new_one_tells_what_it_missed(
    autojump_clock: MockClock,
) -> None:
    kube = FakeKube()
    async with kube.watch(ConfigMap, namespace="default", resource_version="1") as mute:
        kube.mute()
        kube.add(config_map())
        assert (await get(kube)).metadata is not None
        with trio.move_on_after(100) as silence:
            await anext(mute)
        kube.come_back()
        with trio.move_on_after(100) as still:
            await anext(mute)
        assert silence.cancelled_caught
        assert still.cancelled_caught
    async with kube.watch(ConfigMap, namespace="default", resource_version="1") as events:
        event = await anext(events)
        assert isinstance(event, WatchEvent)
        assert event.kind is WatchEventKind.ADDED


@pytest.mark.parametrize("kind", [KubeFaultKind.BROKEN, KubeFaultKind.LOST_REPLY])
async def test_whether_a_lost_request_took_effect(
    kind: KubeFaultKind, autojump_clock: MockClock
) -> None:
    kube = FakeKube()
    kube.faults.add(kind, "create", "configmaps")
    with pytest.raises(KubeUnavailableError):
        await kube.create(config_map(), namespace="default")
    took_effect = kube.find(ConfigMap, "a") is not None
    assert took_effect is (kind is KubeFaultKind.LOST_REPLY)


async def test_faults_choose_their_requests(autojump_clock: MockClock) -> None:
    kube = FakeKube()
    kube.add(pod())
    kube.faults.add(KubeFaultKind.ERROR, "patch", "pods/status", "web", times=2)
    patch = {"status": {"phase": "Running"}}
    where: dict[str, Any] = {"namespace": "default", "subresource": "status"}
    await kube.get(Pod, "web", namespace="default")
    for _ in range(2):
        with pytest.raises(KubeError):
            await kube.patch(Pod, "web", patch, **where)
    await kube.patch(Pod, "web", patch, **where)
    slow = kube.faults.add(KubeFaultKind.SLOW, times=None, delay=3)
    await kube.get(Pod, "web", namespace="default")
    assert trio.current_time() == pytest.approx(3)
    kube.faults.lift(slow)
    await kube.get(Pod, "web", namespace="default")
    assert trio.current_time() == pytest.approx(3)
    asked = [(request.verb, request.resource) for request in kube.requests]
    assert asked[:2] == [("get", "pods"), ("patch", "pods/status")]


async def test_a_change_wakes_whoever_waits_for_it(autojump_clock: MockClock) -> None:
    kube = FakeKube()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(kube.wait_until, lambda kube: kube.find(Pod, "web") is not None)
        await wait_all_tasks_blocked()
        kube.add(pod())


async def refusal(api: KubeApi, verb: str, *args: Any, **options: Any) -> str:
    with pytest.raises(KubeError) as refused:
        await getattr(api, verb)(*args, **options)
    assert (refused.value.code, refused.value.reason) == (403, "Forbidden")
    return refused.value.message


async def test_a_node_sees_its_own_pods_only(autojump_clock: MockClock) -> None:
    kube = FakeKube()
    kube.add(pod("mine", "n1"))
    kube.add(pod("other", "n2"))
    node = kube.node("n1")
    listing = await node.list(Pod, field_selector="spec.nodeName=n1")
    assert [item.metadata.name for item in listing.items if item.metadata] == ["mine"]
    assert "spec.nodeName" in await refusal(node, "list", Pod)
    here = {"namespace": "default"}
    patch = {"status": {"phase": "Running"}}
    await node.patch(Pod, "mine", patch, subresource="status", namespace="default")
    told = await refusal(node, "patch", Pod, "other", patch, subresource="status", **here)
    assert 'node "n1" can only update pod status for pods with spec.nodeName set to' in told
    await refusal(node, "patch", Pod, "mine", patch, **here)
    labels = {"metadata": {"labels": {"a": "1"}}}
    told = await refusal(node, "patch", Pod, "mine", labels, subresource="status", **here)
    assert "cannot update labels through pod status" in told
    await refusal(node, "delete", Pod, "other", grace_period=0, **here)
    await node.delete(Pod, "mine", grace_period=0, **here)


async def test_a_node_creates_mirror_pods_only(autojump_clock: MockClock) -> None:
    kube = FakeKube()
    made = kube.add(Node(metadata=ObjectMeta(name="n1")))
    assert made.metadata is not None
    node, here = kube.node("n1"), {"namespace": "default"}
    mark = {MIRROR: "hash"}
    assert "can only create mirror pods" in await refusal(node, "create", pod(), **here)
    told = await refusal(node, "create", pod(node="n2", annotations=mark), **here)
    assert "spec.nodeName set to itself" in told
    using = pod(
        annotations=mark, volumes=[Volume(name="v", configMap=ConfigMapVolumeSource(name="c"))]
    )
    assert "an owner reference set to itself" in await refusal(node, "create", using, **here)
    for uid, problem in (
        ("old", "UID mismatch"),
        (made.metadata.uid or "", "reference configmaps"),
    ):
        owner = OwnerReference(apiVersion="v1", kind="Node", name="n1", uid=uid, controller=True)
        assert using.metadata is not None
        using.metadata.ownerReferences = [owner]
        assert problem in await refusal(node, "create", using, **here)
    assert using.spec is not None
    using.spec.volumes = None
    await node.create(using, namespace="default")


async def test_a_node_reads_what_its_pods_use(autojump_clock: MockClock) -> None:
    kube = FakeKube()
    here = {"namespace": "default"}
    for name in ("used", "other"):
        kube.add(config_map(name))
    kube.add(pod(volumes=[Volume(name="v", configMap=ConfigMapVolumeSource(name="used"))]))
    node = kube.node("n1")
    await node.get(ConfigMap, "used", namespace="default")
    await node.list(ConfigMap, namespace="default", field_selector="metadata.name=used")
    told = await refusal(node, "get", ConfigMap, "other", **here)
    assert "no relationship found between node 'n1' and this object" in told
    await refusal(node, "list", ConfigMap, **here)
    await refusal(node, "list", Secret)
    kube.remove(ConfigMap, "used")
    with pytest.raises(NotFoundError):
        await node.get(ConfigMap, "used", namespace="default")


async def test_a_node_reads_what_mounts_the_volumes_of_its_pods(autojump_clock: MockClock) -> None:
    kube = FakeKube(namespaces=("default", "storage"))
    kube.add(CSIDriver(metadata=ObjectMeta(name="disk"), spec=CSIDriverSpec()))
    for name in ("mine", "other"):
        secret = SecretReference(name=name, namespace="storage")
        csi = CSIPersistentVolumeSource(driver="disk", volumeHandle=name, nodeStageSecretRef=secret)
        meta = ObjectMeta(name=name)
        kube.add(PersistentVolume(metadata=meta, spec=PersistentVolumeSpec(csi=csi)))
        kube.add(
            PersistentVolumeClaim(metadata=meta, spec=PersistentVolumeClaimSpec(volumeName=name))
        )
        kube.add(Secret(metadata=ObjectMeta(name=name, namespace="storage")), namespace="storage")
    claim = PersistentVolumeClaimVolumeSource(claimName="mine")
    kube.add(pod(volumes=[Volume(name="v", persistentVolumeClaim=claim)]))
    node = kube.node("n1")
    await node.get(PersistentVolume, "mine")
    await node.get(Secret, "mine", namespace="storage")
    for kind, where in ((PersistentVolume, {}), (Secret, {"namespace": "storage"})):
        assert "no relationship" in await refusal(node, "get", kind, "other", **where)
    (driver,) = (await node.list(CSIDriver)).items
    assert driver.spec.attachRequired is True  # the server's default


async def test_a_node_reads_its_own_attachments_one_by_one(autojump_clock: MockClock) -> None:
    kube = FakeKube()
    source = VolumeAttachmentSource(persistentVolumeName="pv")
    for name in ("n1", "n2"):
        spec = VolumeAttachmentSpec(attacher="disk", nodeName=name, source=source)
        kube.add(VolumeAttachment(metadata=ObjectMeta(name=f"for-{name}"), spec=spec))
    node = kube.node("n1")
    found = await node.get(VolumeAttachment, "for-n1")
    assert found.status is not None
    assert found.status.attached is False
    assert "no relationship" in await refusal(node, "get", VolumeAttachment, "for-n2")
    assert "individual resources" in await refusal(node, "list", VolumeAttachment)
    await refusal(node, "patch", VolumeAttachment, "for-n1", {"status": {"attached": True}})
    kube.change(VolumeAttachment, "for-n1", {"status": {"attached": True}}, subresource="status")
    found = await node.get(VolumeAttachment, "for-n1")
    assert found.status is not None
    assert found.status.attached is True


async def test_a_node_has_a_csi_node_of_its_own_name(autojump_clock: MockClock) -> None:
    node = FakeKube().node("n1")
    await node.create(CSINode(metadata=ObjectMeta(name="n1"), spec=CSINodeSpec(drivers=[])))
    await node.get(CSINode, "n1")
    told = await refusal(node, "get", CSINode, "n2")
    assert "can only access CSINode with the same name as the requesting node" in told
    await node.delete(CSINode, "n1")


async def test_a_node_changes_itself_only(autojump_clock: MockClock) -> None:
    kube = FakeKube()
    node = kube.node("n1")
    await node.create(Node(metadata=ObjectMeta(name="n1")))
    told = await refusal(node, "create", Node(metadata=ObjectMeta(name="n2")))
    assert 'not allowed to modify node "n2"' in told
    taints = {"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}}
    assert "taints" in await refusal(node, "patch", Node, "n1", taints)
    good = {"metadata": {"labels": {"node.kubernetes.io/x": "1", "example.org/y": "2"}}}
    await node.patch(Node, "n1", good)
    bad = {"metadata": {"labels": {"node-restriction.kubernetes.io/z": "1"}}}
    assert "labels: node-restriction.kubernetes.io/z" in await refusal(
        node, "patch", Node, "n1", bad
    )
    await refusal(node, "delete", Node, "n1")
    lease = Lease(metadata=ObjectMeta(name="n1"), spec=LeaseSpec(holderIdentity="n1"))
    await node.create(lease, namespace="kube-node-lease")
    await refusal(node, "create", lease, namespace="default")


async def test_a_node_asks_for_tokens_of_its_pods(autojump_clock: MockClock) -> None:
    kube = FakeKube()
    kube.add(ServiceAccount(metadata=ObjectMeta(name="default")))
    mine, other = kube.add(pod("mine", "n1")), kube.add(pod("other", "n2"))
    where = {"namespace": "default", "name": "default", "subresource": "token"}

    def request(bound: Pod | None) -> TokenRequest:
        ref = None
        if bound is not None and bound.metadata is not None:
            ref = BoundObjectReference(
                apiVersion="v1", kind="Pod", name=bound.metadata.name, uid=bound.metadata.uid
            )
        return TokenRequest(spec=TokenRequestSpec(audiences=[], boundObjectRef=ref))

    node = kube.node("n1")
    assert (await node.create(request(mine), **where)).status is not None
    assert "not bound to a pod" in await refusal(node, "create", request(None), **where)
    assert "different node" in await refusal(node, "create", request(other), **where)
