"""The stand-ins for the controller of claims and for the scheduler."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from lightkube.models.core_v1 import Pod
from lightkube.models.resource_v1 import ResourceClaim
from trio.testing import wait_all_tasks_blocked

from kubelet_trio.kube import ROUTES
from kubelet_trio.testing import FakeKube
from tests.harness.claim_controller import ClaimControllers
from tests.harness.claim_devices import Offer
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
    exactly,
    first_of,
    found,
    pod,
    resource_slice,
    template,
)

ADMIN = {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}}


@pytest.fixture
def kube() -> FakeKube:
    kube = cluster()
    add(kube, "DeviceClass", device_class())
    add(kube, "ResourceSlice", resource_slice("s", "a", "b"))
    return kube


@pytest.fixture
def controllers(kube: FakeKube) -> ClaimControllers:
    return ClaimControllers(kube, NODE)


def settle(controllers: ClaimControllers, kube: FakeKube) -> None:
    """Act until nothing changes; that must be soon."""
    for _ in range(10):
        before = kube.server.store.version
        controllers.step()
        if kube.server.store.version == before:
            return
    raise AssertionError("the controllers find no end")


def results(kube: FakeKube, name: str) -> list[Json]:
    allocation = (found(kube, "ResourceClaim", name).get("status") or {}).get("allocation") or {}
    listed: list[Json] = allocation.get("devices", {}).get("results", [])
    return listed


def devices(kube: FakeKube, name: str) -> list[tuple[str, str]]:
    return [(one["request"], one["device"]) for one in results(kube, name)]


def consumers(kube: FakeKube, name: str) -> list[str]:
    status = found(kube, "ResourceClaim", name).get("status") or {}
    return [one["name"] for one in status.get("reservedFor") or ()]


def end(kube: FakeKube, name: str, phase: str = "Succeeded") -> None:
    kube.change(Pod, name, {"status": {"phase": phase}}, subresource="status")


def generated(kube: FakeKube, pod_name: str, at: int = 0) -> str:
    told = found(kube, "Pod", pod_name)["status"]["resourceClaimStatuses"]
    name: str = told[at]["resourceClaimName"]
    return name


def test_a_claim_is_made_from_its_template_allocated_and_reserved(
    kube: FakeKube, controllers: ClaimControllers
) -> None:
    body = template("t")
    body["spec"]["metadata"] = {"labels": {"team": "x"}}
    add(kube, "ResourceClaimTemplate", body)
    web = add(kube, "Pod", pod("web", by_template("gpu", "t")))
    settle(controllers, kube)

    name = generated(kube, "web")
    made = found(kube, "ResourceClaim", name)
    assert name.startswith("web-gpu-")
    assert len(name) == len("web-gpu-") + 5
    meta = made["metadata"]
    assert meta["annotations"] == {"resource.kubernetes.io/pod-claim-name": "gpu"}
    assert meta["labels"] == {"team": "x"}
    owner = {key: meta["ownerReferences"][0][key] for key in ("kind", "name", "uid", "controller")}
    uid = web["metadata"]["uid"]
    assert owner == {"kind": "Pod", "name": "web", "uid": uid, "controller": True}
    assert results(kube, name) == [
        {"request": "one", "driver": DRIVER, "pool": NODE, "device": "a"}
    ]
    fields = [{"key": "metadata.name", "operator": "In", "values": [NODE]}]
    selector = {"nodeSelectorTerms": [{"matchFields": fields}]}
    assert made["status"]["allocation"]["nodeSelector"] == selector
    assert made["status"]["reservedFor"] == [{"resource": "pods", "name": "web", "uid": uid}]
    assert found(kube, "Pod", "web")["spec"]["nodeName"] == NODE


def test_what_was_made_for_a_pod_goes_with_it(
    kube: FakeKube, controllers: ClaimControllers
) -> None:
    add(kube, "ResourceClaimTemplate", template("t"))
    for name in ("ended", "deleted"):
        add(kube, "Pod", pod(name, by_template("gpu", "t")))
    settle(controllers, kube)
    end(kube, "ended", "Failed")
    kube.remove(Pod, "deleted")  # gracefully: its containers may still run
    settle(controllers, kube)
    (left,) = kube.all(ResourceClaim)
    assert left.metadata is not None
    assert left.metadata.name == generated(kube, "deleted")
    kube.remove(Pod, "deleted", grace_period=0)
    settle(controllers, kube)
    assert kube.all(ResourceClaim) == []


def test_pods_share_a_claim_that_outlives_them(
    kube: FakeKube, controllers: ClaimControllers
) -> None:
    add(kube, "ResourceClaim", claim("shared"))
    for name in ("one", "two"):
        add(kube, "Pod", pod(name, by_name("gpu", "shared")))
    settle(controllers, kube)
    assert consumers(kube, "shared") == ["one", "two"]
    end(kube, "one")
    settle(controllers, kube)
    assert consumers(kube, "shared") == ["two"]
    assert devices(kube, "shared") == [("one", "a")]
    end(kube, "two")
    settle(controllers, kube)
    # Nobody uses it, so that others can have its devices.
    assert (consumers(kube, "shared"), devices(kube, "shared")) == ([], [])


def test_a_device_is_given_once_and_a_pod_waits_for_all_of_its_claims(
    kube: FakeKube, controllers: ClaimControllers
) -> None:
    for name, count in (("first", 1), ("second", 1), ("third", 2)):
        add(kube, "ResourceClaim", claim(name, exactly(count=count)))
    add(kube, "Pod", pod("web", by_name("x", "first")))
    settle(controllers, kube)
    add(kube, "Pod", pod("late", by_name("x", "second"), by_name("y", "third")))
    settle(controllers, kube)
    assert (devices(kube, "second"), devices(kube, "third")) == ([], [])
    assert "nodeName" not in found(kube, "Pod", "late")["spec"]
    more = resource_slice("t", "c", "d", pool={"name": "more"})
    add(kube, "ResourceSlice", more)
    settle(controllers, kube)
    assert devices(kube, "second") == [("one", "b")]
    assert devices(kube, "third") == [("one", "c"), ("one", "d")]


def test_the_first_alternative_with_enough_devices_is_taken(
    kube: FakeKube, controllers: ClaimControllers
) -> None:
    add(kube, "DeviceClass", device_class("nic", "nic.example.com"))
    wish = first_of("any", exactly("nic", "nic"), exactly("many", count=3), exactly("few", count=2))
    add(kube, "ResourceClaim", claim("c", wish))
    add(kube, "Pod", pod("web", by_name("x", "c")))
    settle(controllers, kube)
    assert devices(kube, "c") == [("any/few", "a"), ("any/few", "b")]


def test_admin_access_takes_no_device_from_anybody(
    kube: FakeKube, controllers: ClaimControllers
) -> None:
    kube.server.patch(ROUTES["Namespace"], "default", ADMIN)
    watching = exactly(allocationMode="All", adminAccess=True)
    for name, wish in (("all", exactly(count=2)), ("admin", watching), ("more", exactly())):
        add(kube, "ResourceClaim", claim(name, wish))
        add(kube, "Pod", pod(f"of-{name}", by_name("x", name)))
    settle(controllers, kube)
    assert devices(kube, "admin") == [("one", "a"), ("one", "b")]
    assert [one["adminAccess"] for one in results(kube, "admin")] == [True, True]
    assert devices(kube, "more") == []


def add_extended(kube: FakeKube, **spec: Any) -> None:
    """Add a pod that asks for two devices of a class by a resource's name."""
    add(kube, "DeviceClass", device_class("big", extendedResourceName="example.com/gpu"))
    whole = pod("web", **spec)
    amounts = {"example.com/gpu": "2", "cpu": "1"}
    whole["spec"]["containers"][0]["resources"] = {"limits": amounts, "requests": amounts}
    add(kube, "Pod", whole)


def test_no_claim_is_made_for_extended_resources_of_a_pod_that_is_bound(
    kube: FakeKube, controllers: ClaimControllers
) -> None:
    add_extended(kube, nodeName=NODE)
    settle(controllers, kube)
    assert "extendedResourceClaimStatus" not in found(kube, "Pod", "web")["status"]
    assert not kube.server.store.all("ResourceClaim")


def test_an_extended_resource_of_a_class_has_a_claim(
    kube: FakeKube, controllers: ClaimControllers
) -> None:
    add_extended(kube)
    settle(controllers, kube)
    told = found(kube, "Pod", "web")["status"]["extendedResourceClaimStatus"]
    assert told["requestMappings"] == [
        {
            "containerName": "main",
            "resourceName": "example.com/gpu",
            "requestName": "container-0-request-0",
        }
    ]
    name = told["resourceClaimName"]
    assert name.startswith("web-extended-resources-")
    request = "container-0-request-0"
    assert devices(kube, name) == [(request, "a"), (request, "b")]
    assert consumers(kube, name) == ["web"]
    end(kube, "web")
    settle(controllers, kube)
    assert kube.all(ResourceClaim) == []


def test_classes_and_claims_configure_devices(
    kube: FakeKube, controllers: ClaimControllers
) -> None:
    def opaque(value: str) -> Json:
        return {"opaque": {"driver": DRIVER, "parameters": {"kind": value}}}

    add(kube, "DeviceClass", device_class("set", config=[opaque("class")]))
    body = claim("c", exactly(device_class="set"))
    body["spec"]["devices"]["config"] = [{**opaque("claim"), "requests": ["one"]}]
    add(kube, "ResourceClaim", body)
    add(kube, "Pod", pod("web", by_name("x", "c")))
    settle(controllers, kube)
    listed = found(kube, "ResourceClaim", "c")["status"]["allocation"]["devices"]["config"]
    shown = [
        (one["source"], one["requests"], one["opaque"]["parameters"]["kind"]) for one in listed
    ]
    assert shown == [("FromClass", ["one"], "class"), ("FromClaim", ["one"], "claim")]


@pytest.mark.parametrize(
    ("taken_off", "allocation", "reserved"),
    [("allocates", [], []), ("reserves", [("one", "a")], [])],
)
def test_a_test_may_take_off_a_step(
    kube: FakeKube,
    controllers: ClaimControllers,
    taken_off: str,
    allocation: list[Any],
    reserved: list[str],
) -> None:
    setattr(controllers, taken_off, False)
    add(kube, "ResourceClaim", claim("c"))
    add(kube, "Pod", pod("web", by_name("x", "c"), nodeName=NODE))
    settle(controllers, kube)
    assert (devices(kube, "c"), consumers(kube, "c")) == (allocation, reserved)
    setattr(controllers, taken_off, True)
    settle(controllers, kube)
    assert (devices(kube, "c"), consumers(kube, "c")) == ([("one", "a")], ["web"])


def test_a_pool_counts_once_it_is_complete_and_in_its_newest_generation(
    kube: FakeKube, controllers: ClaimControllers
) -> None:
    add(kube, "ResourceClaim", claim("c", exactly(count=3)))
    add(kube, "Pod", pod("web", by_name("x", "c")))
    of_pool = {"name": "big", "generation": 2, "resourceSliceCount": 2}
    old = resource_slice("big-0", "x", "y", pool={**of_pool, "generation": 1})
    add(kube, "ResourceSlice", old)
    add(kube, "ResourceSlice", resource_slice("big-1", "d", pool=of_pool))
    settle(controllers, kube)
    assert devices(kube, "c") == []
    add(kube, "ResourceSlice", resource_slice("big-2", "e", pool=of_pool))
    settle(controllers, kube)
    assert {device for _, device in devices(kube, "c")} == {"d", "e", "a"}


@pytest.mark.parametrize(
    ("expression", "fits"),
    [
        ('device.driver == "gpu.example.com"', True),
        ('device.driver == "other"', False),
        ('device.attributes["gpu.example.com"].model == "x"', True),
        ('device.attributes["gpu.example.com"].cores == 4', True),
        ('device.attributes["gpu.example.com"].cores == 5', False),
        ('device.attributes["other"].model == "x"', False),
        ('device.driver == "gpu.example.com" && device.attributes["gpu.example.com"].ok == true',
         True),
    ],
)  # fmt: skip
def test_devices_are_chosen_by_driver_and_attributes(expression: str, fits: bool) -> None:
    attributes = {"model": {"string": "x"}, "cores": {"int": 4}, "ok": {"bool": True}}
    offer = Offer(DRIVER, NODE, {"name": "a", "attributes": attributes}, is_local=True)
    assert offer.satisfies([{"cel": {"expression": expression}}]) is fits


def test_a_taint_keeps_devices_from_claims_that_do_not_tolerate_it() -> None:
    taint = {"key": "broken", "value": "yes", "effect": "NoSchedule"}
    offer = Offer(DRIVER, NODE, {"name": "a", "taints": [taint]}, is_local=True)
    assert not offer.is_tolerated([])
    assert not offer.is_tolerated([{"key": "other", "operator": "Exists"}])
    assert offer.is_tolerated([{"operator": "Exists"}])
    assert offer.is_tolerated([{"key": "broken", "value": "yes"}])


async def test_controllers_act_after_every_change(
    kube: FakeKube, controllers: ClaimControllers
) -> None:
    add(kube, "ResourceClaimTemplate", template("t"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(controllers.run)
        await wait_all_tasks_blocked()
        add(kube, "Pod", pod("web", by_template("gpu", "t")))
        await kube.wait_until(lambda kube: found(kube, "Pod", "web")["spec"].get("nodeName"))
        end(kube, "web")
        await kube.wait_until(lambda kube: not kube.all(ResourceClaim))
        nursery.cancel_scope.cancel()
