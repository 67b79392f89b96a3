"""What a node may do with claims and slices."""

from __future__ import annotations

import pytest
from lightkube.models.core_v1 import Pod
from lightkube.models.resource_v1 import (
    DeviceClass,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourceSlice,
)

from kubelet_trio.kube import KubeError, from_json
from kubelet_trio.testing import FakeKube, FakeKubeClient
from tests.testing.kube.claims import (
    DRIVER,
    NODE,
    Json,
    add,
    by_name,
    by_template,
    claim,
    cluster,
    device_class,
    pod,
    resource_slice,
    template,
)

UNRELATED = f"no relationship found between node '{NODE}' and this object"
OWN, OTHERS = f"spec.nodeName={NODE}", "spec.nodeName=n2"


@pytest.fixture
def kube() -> FakeKube:
    return cluster()


@pytest.fixture
def node(kube: FakeKube) -> FakeKubeClient:
    return kube.node(NODE)


def patch_status(kube: FakeKube, name: str, status: Json) -> None:
    kube.change(Pod, name, {"status": status}, subresource="status")


async def test_a_node_gets_the_claims_of_its_pods_and_no_others(
    kube: FakeKube, node: FakeKubeClient
) -> None:
    for name in ("own", "generated", "extended", "of-other", "loose"):
        add(kube, "ResourceClaim", claim(name))
    add(kube, "Pod", pod("web", by_name("a", "own"), by_template("b", "t"), nodeName=NODE))
    add(kube, "Pod", pod("other", by_name("a", "of-other"), nodeName="n2"))
    found = await node.get(ResourceClaim, "own", namespace="default")
    assert found.metadata is not None
    assert found.metadata.name == "own"
    for name in ("generated", "extended", "of-other", "loose", "none"):
        with pytest.raises(KubeError, match=UNRELATED):
            await node.get(ResourceClaim, name, namespace="default")

    told = [{"name": "b", "resourceClaimName": "generated"}]
    patch_status(kube, "web", {"resourceClaimStatuses": told})
    await node.get(ResourceClaim, "generated", namespace="default")
    # The name in the status counts, not that in the spec: a claim in another namespace is another.
    with pytest.raises(KubeError, match=UNRELATED):
        await node.get(ResourceClaim, "generated", namespace="kube-system")
    kube.remove(Pod, "web", grace_period=0)
    with pytest.raises(KubeError, match=UNRELATED):
        await node.get(ResourceClaim, "own", namespace="default")


async def test_a_node_gets_the_claim_of_a_pods_extended_resources(
    kube: FakeKube, node: FakeKubeClient
) -> None:
    add(kube, "ResourceClaim", claim("extended"))
    whole, amounts = pod("web", nodeName=NODE), {"example.com/gpu": "1"}
    whole["spec"]["containers"][0]["resources"] = {"limits": amounts, "requests": amounts}
    add(kube, "Pod", whole)
    mapping = {
        "containerName": "main",
        "resourceName": "example.com/gpu",
        "requestName": "container-0-request-0",
    }
    status = {"resourceClaimName": "extended", "requestMappings": [mapping]}
    patch_status(kube, "web", {"extendedResourceClaimStatus": status})
    await node.get(ResourceClaim, "extended", namespace="default")


async def test_a_node_only_gets_claims_one_by_one(kube: FakeKube, node: FakeKubeClient) -> None:
    add(kube, "ResourceClaim", claim("own"))
    add(kube, "Pod", pod("web", by_name("a", "own"), nodeName=NODE))
    own = await node.get(ResourceClaim, "own", namespace="default")
    with pytest.raises(KubeError, match='cannot list resource "resourceclaims"'):
        await node.list(ResourceClaim, namespace="default")
    with pytest.raises(KubeError, match='cannot watch resource "resourceclaims"'):
        async with node.watch(ResourceClaim, namespace="default"):
            pass
    with pytest.raises(KubeError, match='cannot update resource "resourceclaims/status"'):
        await node.update(own, subresource="status")
    with pytest.raises(KubeError, match='cannot delete resource "resourceclaims"'):
        await node.delete(ResourceClaim, "own", namespace="default")
    with pytest.raises(KubeError, match='cannot create resource "resourceclaims"'):
        await node.create(from_json(claim("more"), ResourceClaim), namespace="default")


async def test_a_node_reads_neither_templates_nor_classes(
    kube: FakeKube, node: FakeKubeClient
) -> None:
    add(kube, "ResourceClaimTemplate", template("t"))
    add(kube, "DeviceClass", device_class())
    with pytest.raises(KubeError, match='cannot get resource "resourceclaimtemplates"'):
        await node.get(ResourceClaimTemplate, "t", namespace="default")
    with pytest.raises(KubeError, match='cannot get resource "deviceclasses"'):
        await node.get(DeviceClass, "gpu")


async def test_a_node_writes_and_deletes_its_own_slices_only(
    kube: FakeKube, node: FakeKubeClient
) -> None:
    made = await node.create(from_json(resource_slice("own", "a"), ResourceSlice))
    await node.update(made)
    with pytest.raises(KubeError, match="can only create ResourceSlice with the same NodeName"):
        await node.create(from_json(resource_slice("more", nodeName="n2"), ResourceSlice))
    with pytest.raises(KubeError, match="can only create ResourceSlice with the same NodeName"):
        await node.create(from_json(resource_slice("more", allNodes=True), ResourceSlice))
    add(kube, "ResourceSlice", resource_slice("others", nodeName="n2"))
    for name in ("others", "none"):
        with pytest.raises(KubeError, match=UNRELATED):
            await node.get(ResourceSlice, name)
        with pytest.raises(KubeError, match=UNRELATED):
            await node.delete(ResourceSlice, name)
        with pytest.raises(KubeError, match=UNRELATED):
            await node.patch(ResourceSlice, name, {"metadata": {"labels": {"a": "b"}}})
    await node.get(ResourceSlice, "own")
    await node.delete(ResourceSlice, "own")
    assert [one.metadata.name for one in kube.all(ResourceSlice) if one.metadata] == ["others"]


async def test_a_node_lists_watches_and_deletes_slices_by_its_name(
    kube: FakeKube, node: FakeKubeClient
) -> None:
    add(kube, "ResourceSlice", resource_slice("own"))
    add(kube, "ResourceSlice", resource_slice("own-nic", driver="nic.example.com"))
    add(kube, "ResourceSlice", resource_slice("others", nodeName="n2"))
    refused = "can only list/watch/deletecollection resourceslices with nodeName field selector"
    for fields in ("", OTHERS, f"spec.driver={DRIVER}"):
        with pytest.raises(KubeError, match=refused):
            await node.list(ResourceSlice, field_selector=fields)
        with pytest.raises(KubeError, match=refused):
            await node.delete_collection(ResourceSlice, field_selector=fields)
        with pytest.raises(KubeError, match=refused):
            async with node.watch(ResourceSlice, field_selector=fields):
                pass
    listed = await node.list(ResourceSlice, field_selector=f"{OWN},spec.driver={DRIVER}")
    assert [one.metadata.name for one in listed.items if one.metadata] == ["own"]

    await node.delete_collection(ResourceSlice, field_selector=f"{OWN},spec.driver={DRIVER}")
    left = [one.metadata.name for one in kube.all(ResourceSlice) if one.metadata]
    assert left == ["others", "own-nic"]
    await node.delete_collection(ResourceSlice, field_selector=OWN)
    assert [one.metadata.name for one in kube.all(ResourceSlice) if one.metadata] == ["others"]
    last = kube.requests[-1]
    assert (last.verb, last.resource, last.name) == ("deletecollection", "resourceslices", "")


async def test_a_node_deletes_no_other_kind_by_a_selector(node: FakeKubeClient) -> None:
    with pytest.raises(KubeError, match='cannot deletecollection resource "pods"'):
        await node.delete_collection(Pod, field_selector=OWN)


async def test_a_node_cannot_make_a_claim_its_own_by_a_pods_status(
    kube: FakeKube, node: FakeKubeClient
) -> None:
    add(kube, "Pod", pod("web", by_template("a", "t"), nodeName=NODE))
    for status in (
        {"resourceClaimStatuses": [{"name": "a", "resourceClaimName": "stolen"}]},
        {"extendedResourceClaimStatus": {"resourceClaimName": "stolen"}},
    ):
        with pytest.raises(KubeError, match=r"cannot update .*resource claim status"):
            await node.patch(
                Pod, "web", {"status": status}, namespace="default", subresource="status"
            )
    # What it keeps, it may send.
    told = [{"name": "a", "resourceClaimName": "given"}]
    patch_status(kube, "web", {"resourceClaimStatuses": told})
    kept = {"resourceClaimStatuses": told, "phase": "Running"}
    await node.patch(Pod, "web", {"status": kept}, namespace="default", subresource="status")


async def test_a_node_cannot_make_a_claim_its_own_by_a_mirror_pod(
    kube: FakeKube, node: FakeKubeClient
) -> None:
    add(kube, "ResourceClaim", claim("stolen"))
    mirror = pod("web", by_name("a", "stolen"), nodeName=NODE)
    (own,) = kube.server.store.all("Node")
    owner = {
        "apiVersion": "v1",
        "kind": "Node",
        "name": NODE,
        "uid": own["metadata"]["uid"],
        "controller": True,
    }
    mirror["metadata"] |= {
        "annotations": {"kubernetes.io/config.mirror": "h"},
        "ownerReferences": [owner],
    }
    with pytest.raises(KubeError, match="can not create pods that reference resourceclaims"):
        await node.create(from_json(mirror, Pod), namespace="default")
