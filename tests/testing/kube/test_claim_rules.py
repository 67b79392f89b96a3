"""What the fake API server refuses of claims, templates, classes and slices."""

from __future__ import annotations

from typing import Any

import pytest

from kubelet_trio.kube import ROUTES, KubeError
from kubelet_trio.testing import FakeKube
from tests.testing.kube.claims import (
    DRIVER,
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
    tell,
    template,
)

ONE_NODE = (
    "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required"
)
REFERENCE = (
    "must be the name of a request in the claim or the name of a request and a subrequest "
    "separated by '/'"
)
ADMIN = (
    "admin access to devices requires the `resource.kubernetes.io/admin-access: true` label on "
    "the containing namespace"
)
RESULT = {"request": "one", "driver": DRIVER, "pool": "n1", "device": "a"}
USER = {"resource": "pods", "name": "web", "uid": "u"}


def refusal(kube: FakeKube, kind: str, body: Json) -> str:
    """Return what is wrong with an object, after the words that all refusals begin with."""
    with pytest.raises(KubeError) as refused:
        add(kube, kind, body)
    assert (refused.value.code, refused.value.reason) == (422, "Invalid")
    return refused.value.message.partition(" is invalid: ")[2]


def allocated(*results: Json) -> Json:
    return {"allocation": {"devices": {"results": list(results or (RESULT,))}}}


@pytest.mark.parametrize(
    ("requests", "problem"),
    [
        (
            [{"name": "one"}],
            "spec.devices.requests[0]: Required value: exactly one of `exactly` or "
            "`firstAvailable` is required",
        ),
        (
            [{**exactly(), **first_of("one", exactly("a"))}],
            "spec.devices.requests[0]: Invalid value: null: exactly one of `exactly` or "
            "`firstAvailable` is required, but multiple fields are set",
        ),
        ([exactly("a"), exactly("a")], 'spec.devices.requests[1]: Duplicate value: "a"'),
        ([exactly(count=-1)], "spec.devices.requests[0].exactly.count: Invalid value: -1: must be "
         "greater than zero"),
        (
            [exactly(allocationMode="All", count=2)],
            "spec.devices.requests[0].exactly.count: Invalid value: 2: must not be specified when "
            "allocationMode is 'All'",
        ),
        (
            [exactly(allocationMode="Some")],
            'spec.devices.requests[0].exactly.allocationMode: Unsupported value: "Some": supported '
            'values: "All", "ExactCount"',
        ),
        (
            [first_of("one", exactly("a", ""))],
            "spec.devices.requests[0].firstAvailable[0].deviceClassName: Required value",
        ),
        ([exactly(f"r{n}") for n in range(33)],
         "spec.devices.requests: Too many: 33: must have at most 32 items"),
        ([exactly(adminAccess=True)],
         f"spec.devices.requests[0].adminAccess: Forbidden: {ADMIN}"),
    ],
)  # fmt: skip
def test_claims_and_templates_that_are_not_valid_are_refused(
    requests: list[Json], problem: str
) -> None:
    kube = cluster()
    assert refusal(kube, "ResourceClaim", claim("c", *requests)) == problem
    below = problem if "adminAccess" in problem else f"spec.{problem}"
    assert refusal(kube, "ResourceClaimTemplate", template("c", *requests)) == below


def test_a_claim_has_defaults_and_no_status_of_its_creator_and_stays_as_it_is() -> None:
    kube = cluster()
    add(kube, "ResourceClaim", {**claim("c", exactly(), first_of("two", exactly("a"))),
                                "status": allocated()})  # fmt: skip
    made = found(kube, "ResourceClaim", "c")
    one, two = made["spec"]["devices"]["requests"]
    assert (one["exactly"]["allocationMode"], one["exactly"]["count"]) == ("ExactCount", 1)
    assert two["firstAvailable"][0]["count"] == 1
    assert "status" not in made
    with pytest.raises(KubeError, match=r"spec: Invalid value: .*: field is immutable"):
        kube.server.update(ROUTES["ResourceClaim"], {**made, "spec": claim("c")["spec"]})


def test_only_namespaces_of_administrators_have_claims_with_admin_access() -> None:
    kube = cluster()
    label = {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}}
    add(kube, "ResourceClaim", claim("plain"))
    admin = allocated({**RESULT, "adminAccess": True})
    with pytest.raises(KubeError, match=r"results\[0\].adminAccess: Forbidden: admin access"):
        tell(kube, "ResourceClaim", "plain", admin)
    kube.server.patch(ROUTES["Namespace"], "default", label)
    add(kube, "ResourceClaim", claim("c", exactly(adminAccess=True)))
    tell(kube, "ResourceClaim", "c", admin)
    # Once it has it, it keeps it.
    kube.server.patch(ROUTES["Namespace"], "default", {"metadata": {"labels": None}})
    tell(kube, "ResourceClaim", "c", {**admin, "reservedFor": [USER]})


@pytest.mark.parametrize(
    ("status", "problem"),
    [
        ({"reservedFor": [USER]},
         "status.reservedFor: Forbidden: may not be specified when `allocated` is not set"),
        (
            {**allocated(), "reservedFor": [{**USER, "uid": str(n)} for n in range(257)]},
            "status.reservedFor: Too many: 257: must have at most 256 items",
        ),
        ({**allocated(), "reservedFor": [USER, USER]},
         'status.reservedFor[1]: Duplicate value: "u"'),
        ({**allocated(), "reservedFor": [{**USER, "name": ""}]},
         "status.reservedFor[0].name: Required value"),
        (
            allocated({**RESULT, "request": "two"}),
            'status.allocation.devices.results[0].request: Invalid value: "two": ' + REFERENCE,
        ),
        (
            allocated({**RESULT, "request": "many/none"}),
            'status.allocation.devices.results[0].request: Invalid value: "many/none": '
            + REFERENCE,
        ),
        (allocated({**RESULT, "driver": ""}),
         "status.allocation.devices.results[0].driver: Required value"),
        (allocated({**RESULT, "pool": ""}),
         "status.allocation.devices.results[0].pool: Required value"),
        (
            {**allocated(), "devices": [{**RESULT, "device": "b"}]},
            'status.devices[0]: Invalid value: {"driver":"gpu.example.com","pool":"n1",'
            '"device":"b"}: must be an allocated device in the claim',
        ),
    ],
)  # fmt: skip
def test_a_claims_status_that_is_not_valid_is_refused(status: Json, problem: str) -> None:
    kube = cluster()
    add(kube, "ResourceClaim", claim("c", exactly(), first_of("many", exactly("a"))))
    with pytest.raises(KubeError) as refused:
        tell(kube, "ResourceClaim", "c", status)
    assert refused.value.message.partition(" is invalid: ")[2] == problem


def test_an_allocation_is_kept_or_taken_back_but_never_changed() -> None:
    kube = cluster()
    add(kube, "ResourceClaim", claim("c", exactly(), first_of("many", exactly("a"))))
    given = allocated(RESULT, {**RESULT, "request": "many/a", "device": "b"})
    told = [{field: RESULT[field] for field in ("driver", "pool", "device")}]
    tell(kube, "ResourceClaim", "c", {**given, "reservedFor": [USER], "devices": told})
    with pytest.raises(KubeError, match=r"status.allocation: Invalid value: .* is immutable"):
        tell(kube, "ResourceClaim", "c", allocated())
    # What drivers said of the devices goes with them.
    assert tell(kube, "ResourceClaim", "c", {"devices": told})["status"] == {}


def test_a_claim_that_is_being_deleted_takes_no_more_pods() -> None:
    kube = cluster()
    add(kube, "ResourceClaim", claim("c", finalizers=["example.org/kept"]))
    tell(kube, "ResourceClaim", "c", {**allocated(), "reservedFor": [USER]})
    kube.server.delete(ROUTES["ResourceClaim"], "c", "default")
    other = {**USER, "uid": "v"}
    with pytest.raises(KubeError, match="new entries may not be added while"):
        tell(kube, "ResourceClaim", "c", {**allocated(), "reservedFor": [USER, other]})
    tell(kube, "ResourceClaim", "c", allocated())


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (resource_slice("s", driver=""), "spec.driver: Required value"),
        (resource_slice("s", pool={"name": ""}), "spec.pool.name: Required value"),
        (
            resource_slice("s", pool={"resourceSliceCount": 0}),
            "spec.pool.resourceSliceCount: Invalid value: 0: must be greater than zero",
        ),
        (
            resource_slice("s", pool={"generation": -1}),
            "spec.pool.generation: Invalid value: -1: must be greater than or equal to zero",
        ),
        (resource_slice("s", nodeName=None), f"spec: Required value: {ONE_NODE}"),
        (
            resource_slice("s", nodeName="n1", allNodes=True),
            f'spec: Invalid value: "{{`nodeName`, `allNodes`}}": {ONE_NODE}, but multiple fields '
            "are set",
        ),
        (
            resource_slice("s", allNodes=False),
            "[spec.allNodes: Invalid value: false: must be either unset or set to true, "
            f"spec: Required value: {ONE_NODE}]",
        ),
        (resource_slice("s", "a", "a"), 'spec.devices[1]: Duplicate value: "a"'),
        (resource_slice("s", *(f"d{n}" for n in range(129))),
         "spec.devices: Too many: 129: must have at most 128 items"),
        (
            resource_slice("s", {"name": "a", "attributes": {"model": {"int": 1, "string": "x"}}}),
            'spec.devices[0].attributes[model]: Invalid value: {"int":1,"string":"x"}: exactly one '
            "value must be specified",
        ),
        (
            resource_slice("s", {"name": "a", "attributes": {"v": {"version": "1.x"}}}),
            'spec.devices[0].attributes[v].version: Invalid value: "1.x": must be a string '
            "compatible with semver.org spec 2.0.0",
        ),
        (
            resource_slice("s", {"name": "a", "nodeName": "n1"}),
            "spec.devices[0]: Invalid value: null: `nodeName`, `nodeSelector` and `allNodes` can "
            "only be set if `perDeviceNodeSelection` is set to true in the ResourceSlice spec",
        ),
        (resource_slice("s", {"name": "a", "taints": [{"key": "k"}]}),
         "spec.devices[0].taints[0].effect: Required value"),
    ],
)  # fmt: skip
def test_slices_that_are_not_valid_are_refused(body: Json, problem: str) -> None:
    assert refusal(cluster(), "ResourceSlice", body) == problem


@pytest.mark.parametrize(
    ("field", "value"),
    [("driver", "other.example.com"), ("nodeName", "n2"), ("pool", {"name": "other"})],
)
def test_a_slice_keeps_its_driver_node_and_pool_and_counts_changes(field: str, value: Any) -> None:
    kube = cluster()
    made = add(kube, "ResourceSlice", resource_slice("s", "a"))
    changed = {**made["spec"][field], **value} if isinstance(value, dict) else value
    with pytest.raises(KubeError, match="field is immutable"):
        kube.server.update(
            ROUTES["ResourceSlice"], {**made, "spec": {**made["spec"], field: changed}}
        )
    pool = {**made["spec"]["pool"], "generation": 2}
    body = {**made, "spec": {**made["spec"], "pool": pool, "devices": [{"name": "b"}]}}
    assert made["metadata"]["generation"] == 1
    done = kube.server.update(ROUTES["ResourceSlice"], body)
    assert done["metadata"]["generation"] == 2


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (device_class(extendedResourceName="cpu"),
         'spec.extendedResourceName: Invalid value: "cpu": must be a valid extended resource name'),
        (device_class(selectors=[{}]), "spec.selectors[0].cel: Required value"),
        (device_class(config=[{}]), "spec.config[0].opaque: Required value"),
    ],
)  # fmt: skip
def test_classes_that_are_not_valid_are_refused(body: Json, problem: str) -> None:
    assert refusal(cluster(), "DeviceClass", body) == problem


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (
            pod("web", uses=[{"name": "gpu"}]),
            'spec.containers[0].resources.claims[0]: Not found: "gpu": must be one of the names in '
            "pod.spec.resourceClaims which is empty",
        ),
        (
            pod("web", by_name("nic", "n"), by_name("fpga", "f"), uses=[{"name": "gpu"}]),
            'spec.containers[0].resources.claims[0]: Not found: "gpu": must be one of the names in '
            "pod.spec.resourceClaims: fpga, nic",
        ),
        (
            pod("web", by_name("gpu", "g"), uses=[{"name": "gpu"}, {"name": "gpu"}]),
            'spec.containers[0].resources.claims[1]: Duplicate value: "gpu"',
        ),
        (
            pod("web", by_name("gpu", "g"), by_name("gpu", "h"), uses=[]),
            'spec.resourceClaims[1].name: Duplicate value: "gpu"',
        ),
        (
            pod("web", {"name": "gpu"}),
            'spec.resourceClaims[0]: Invalid value: {"name":"gpu"}: must specify one of: '
            "`resourceClaimName`, `resourceClaimTemplateName`",
        ),
        (
            pod("web", {**by_name("gpu", "g"), **by_template("gpu", "t")}),
            'spec.resourceClaims[0]: Invalid value: {"name":"gpu","resourceClaimName":"g",'
            '"resourceClaimTemplateName":"t"}: at most one of `resourceClaimName` or '
            "`resourceClaimTemplateName` may be specified",
        ),
    ],
)  # fmt: skip
def test_pods_with_claims_that_do_not_fit_are_refused(body: Json, problem: str) -> None:
    assert refusal(cluster(), "Pod", body) == problem


def test_a_container_may_name_a_claim_for_some_of_its_requests() -> None:
    uses = [{"name": "gpu", "request": "a"}, {"name": "gpu", "request": "b"}]
    add(cluster(), "Pod", pod("web", by_name("gpu", "g"), uses=uses))


def test_a_pods_status_names_claims_of_its_spec_only() -> None:
    kube = cluster()
    add(kube, "Pod", pod("web", by_template("gpu", "t")))
    other = {"status": {"resourceClaimStatuses": [{"name": "nic", "resourceClaimName": "n"}]}}
    with pytest.raises(
        KubeError, match=r"must match the name of an entry in `spec.resourceClaims`"
    ):
        kube.server.patch(ROUTES["Pod"], "web", other, "default", "status")
    own = {"status": {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "g"}]}}
    kube.server.patch(ROUTES["Pod"], "web", own, "default", "status")
    # Whoever writes another field of the status keeps it.
    phase = {"status": {"phase": "Running"}}
    kube.server.patch(ROUTES["Pod"], "web", phase, "default", "status")
    assert found(kube, "Pod", "web")["status"]["resourceClaimStatuses"][0]["name"] == "gpu"


def test_an_extended_resource_in_a_pods_status_is_one_of_a_container() -> None:
    kube = cluster()
    whole = pod("web")
    amounts = {"example.com/gpu": "1"}
    whole["spec"]["containers"][0]["resources"] = {"limits": amounts, "requests": amounts}
    add(kube, "Pod", whole)

    def told(container: str, resource: str) -> Json:
        one = {"containerName": container, "resourceName": resource, "requestName": "r"}
        status = {"resourceClaimName": "c", "requestMappings": [one]}
        return {"status": {"extendedResourceClaimStatus": status}}

    for wrong in (told("other", "example.com/gpu"), told("main", "example.com/nic")):
        with pytest.raises(KubeError, match=r"requestMappings\[0\]"):
            kube.server.patch(ROUTES["Pod"], "web", wrong, "default", "status")
    right = told("main", "example.com/gpu")
    kube.server.patch(ROUTES["Pod"], "web", right, "default", "status")
