"""Which claims a pod uses, whether it may, and which devices its containers get."""

from __future__ import annotations

import pytest
from lightkube.models.core_v1 import Container, Pod, PodResourceClaim, ResourceRequirements
from lightkube.models.meta_v1 import OwnerReference

from kubelet_trio.managers import NO_SHARE, ContainerShare, DeviceOptions, with_cdi
from kubelet_trio.managers.claims import Claim, ClaimDevice, ClaimError, ClaimKey, ClaimRef
from kubelet_trio.managers.claims.usage import (
    PodClaim,
    cdi_ids,
    check_claim,
    claim_health,
    pod_claims,
)
from tests.managers.claims.objects import (
    GPUS,
    NICS,
    claim_object,
    extended_by,
    pod_using,
    using,
)


def names(pod: Pod, *, extended: bool = True) -> list[tuple[str, str, bool]]:
    return [(c.name, c.key.name, c.is_own) for c in pod_claims(pod, extended=extended)]


def test_claims_are_named_by_the_spec_or_by_the_status() -> None:
    pod = pod_using("a=one", "b=", "c=", made={"b": "p1-b-xyz", "c": None})
    assert names(pod) == [("a", "one", False), ("b", "p1-b-xyz", True)]
    assert names(pod_using()) == []


def test_extended_resources_are_a_claim_if_the_gate_is_on() -> None:
    pod = pod_using("a=one", extended=extended_by("ext", main="example.com/gpu r"))
    assert names(pod) == [("a", "one", False), ("", "ext", False)]
    assert names(pod, extended=False) == [("a", "one", False)]


def test_a_claim_that_was_not_made_yet() -> None:
    with pytest.raises(ClaimError, match=r'^pod "ns/p1": ResourceClaim not created yet$'):
        pod_claims(pod_using("a="))


def test_a_claim_without_a_name() -> None:
    pod = pod_using("a=x")
    assert pod.spec is not None
    pod.spec.resourceClaims = [PodResourceClaim(name="a")]
    expected = r'^pod "ns/p1", spec.resourceClaim "a": none of the supported fields are set$'
    with pytest.raises(ClaimError, match=expected):
        pod_claims(pod)


SHARED = PodClaim("a", ClaimKey("ns", "one"), is_own=False)
OWN = SHARED._replace(is_own=True)


def test_a_claim_has_the_drivers_of_its_allocation() -> None:
    claim = check_claim(pod_using("a=one"), SHARED, claim_object("one", NICS, GPUS, NICS))
    assert claim.ref == ClaimRef("ns", "one", "uid-one")
    assert dict(claim.drivers) == {GPUS: (), NICS: ()}
    assert (claim.pods, claim.is_prepared) == (frozenset(), False)
    own = check_claim(pod_using("a="), OWN, claim_object("one", GPUS, owner="p1"))
    assert dict(own.drivers) == {GPUS: ()}


@pytest.mark.parametrize(
    ("used", "claim", "text"),
    [
        (
            OWN,
            claim_object("one", GPUS),
            "ResourceClaim ns/one was not created for Pod ns/p1 (Pod is not owner)",
        ),
        (
            OWN,
            claim_object("one", GPUS, owner="p2"),
            "ResourceClaim ns/one was not created for Pod ns/p1 (Pod is not owner)",
        ),
        (
            SHARED,
            claim_object("one", GPUS, users=("p2",)),
            "pod p1 (p1) is not allowed to use ResourceClaim one (uid-one)",
        ),
        (
            SHARED,
            claim_object("one", GPUS, is_allocated=False),
            "ResourceClaim one: not allocated",
        ),
    ],
)
def test_a_claim_that_a_pod_may_not_use(used: PodClaim, claim: object, text: str) -> None:
    with pytest.raises(ClaimError) as caught:
        check_claim(pod_using("a=one"), used, claim)  # type: ignore[arg-type]
    assert str(caught.value) == text


def test_an_owner_that_is_no_controller_does_not_count() -> None:
    claim = claim_object("one", GPUS)
    assert claim.metadata is not None
    claim.metadata.ownerReferences = [OwnerReference("v1", "Pod", "p1", "p1")]
    with pytest.raises(ClaimError, match="Pod is not owner"):
        check_claim(pod_using("a="), OWN, claim)


def device(name: str, *requests: str) -> ClaimDevice:
    return ClaimDevice("pool", name, requests, (f"v/c={name}",))


PREPARED = {
    ClaimKey("ns", "one"): Claim(
        ClaimRef("ns", "one", "u"),
        drivers={
            NICS: (device("n0", "nic"),),
            GPUS: (device("g0", "gpu/big"), device("g1", "gpu/small", "spare"), device("all")),
        },
    ),
    ClaimKey("ns", "two"): Claim(ClaimRef("ns", "two", "u2"), drivers={GPUS: (device("g0", "x"),)}),
}


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ((), ""),
        (("a",), "g0 g1 all n0"),
        (("a:gpu",), "g0 g1 all"),
        (("a:gpu/big",), "g0 all"),
        (("a:spare",), "g1 all"),
        (("a:nic/fast",), "all n0"),
        (("a:ni",), "all"),
        (("a:nic", "a:spare"), "all n0 g1"),
        (("b",), "g0"),
        (("a:gpu/small", "b"), "g1 all g0"),
        (("none",), ""),
    ],
)
@pytest.mark.parametrize("kind", ["", "sidecar"])
def test_a_container_gets_the_devices_of_its_requests(
    asked: tuple[str, ...], expected: str, kind: str
) -> None:
    pod = pod_using("a=one", "b=two", "c=", made={"c": None})
    found = cdi_ids(PREPARED, pod, using("some", *asked, kind=kind))
    assert found == tuple(f"v/c={name}" for name in expected.split())


def test_a_container_of_a_claim_that_is_not_known() -> None:
    pod = pod_using("a=three")
    text = "internal error: unable to get claim info for ResourceClaim three in namespace ns"
    with pytest.raises(ClaimError, match=f"^{text}$"):
        cdi_ids(PREPARED, pod, using("main", "a"))
    assert cdi_ids(PREPARED, pod, using("other")) == ()


@pytest.mark.parametrize(
    ("amount", "resource", "extended", "expected"),
    [
        ("1", "example.com/gpu", True, ("v/c=g0",)),
        ("1", "deviceclass.resource.kubernetes.io/gpu", True, ("v/c=g0",)),
        ("1", "example.com/gpu", False, ()),
        ("0", "example.com/gpu", True, ()),
        ("1", "cpu", True, ()),
        ("1", "x.kubernetes.io/y", True, ()),
    ],
)
def test_extended_resources_of_a_container(
    amount: str, resource: str, extended: bool, expected: tuple[str, ...]
) -> None:
    asking = Container(name="c", resources=ResourceRequirements(requests={resource: amount}))
    pod = pod_using(containers=[asking], extended=extended_by("two", c=f"{resource} x"))
    assert cdi_ids(PREPARED, pod, asking, extended=extended) == expected
    other = Container(name="d", resources=ResourceRequirements(requests={resource: amount}))
    assert cdi_ids(PREPARED, pod, other) == ()


class Healths:
    """What drivers say: g0 is broken, of the others nothing is known."""

    def health(self, driver: str, pool: str, device: str) -> tuple[str, str]:
        return ("Unhealthy", "hot") if device == "g0" else ("Unknown", "")


def test_the_health_of_what_a_container_names() -> None:
    pod = pod_using("a=one", "b=two", "c=three")
    found = claim_health(PREPARED, pod, using("x", "a:gpu/big", "b", "c"), Healths())
    assert {each.resource: dict(each.devices) for each in found} == {
        "claim:a/gpu/big": {"v/c=g0": ("Unhealthy", "hot"), "v/c=all": ("Unknown", "")},
        "claim:b": {"v/c=g0": ("Unhealthy", "hot")},
    }
    (found_without,) = claim_health(PREPARED, pod, using("x", "b"), Healths(), messages=False)
    assert found_without.devices == {"v/c=g0": ("Unhealthy", "")}
    assert claim_health(PREPARED, pod, using("x"), Healths()) == ()


def test_a_device_without_cdi_name_is_shown_by_its_own() -> None:
    claim = Claim(ClaimRef("ns", "one", "u"), drivers={GPUS: (ClaimDevice("pool", "g0"),)})
    (found,) = claim_health(
        {ClaimKey("ns", "one"): claim}, pod_using("a=one"), using("x", "a"), Healths()
    )
    assert found.devices == {f"{GPUS}/pool/g0": ("Unhealthy", "hot")}


def test_of_devices_with_one_cdi_name_the_first_is_shown() -> None:
    devices = (ClaimDevice("pool", "g0", cdi_ids=("v/c=all",)), device("all"))
    claim = Claim(ClaimRef("ns", "one", "u"), drivers={GPUS: devices})
    (found,) = claim_health(
        {ClaimKey("ns", "one"): claim}, pod_using("a=one"), using("x", "a"), Healths()
    )
    assert found.devices == {"v/c=all": ("Unhealthy", "hot")}


def test_cdi_devices_come_before_those_of_device_plugins() -> None:
    plugged = ContainerShare(cpuset_cpus="1", devices=DeviceOptions(env={"A": "b"}, cdi=("p=1",)))
    both = with_cdi(plugged, ("c=2", "p=1", "c=3"))
    assert both.cpuset_cpus == "1"
    assert both.devices == DeviceOptions(env={"A": "b"}, cdi=("c=2", "p=1", "c=3"))
    after = with_cdi(plugged, ("c=2",)).devices
    assert after is not None
    assert after.cdi == ("c=2", "p=1")
    assert with_cdi(NO_SHARE, ("c=2",)).devices == DeviceOptions(cdi=("c=2",))
    assert with_cdi(NO_SHARE, ()) is NO_SHARE
